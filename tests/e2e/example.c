/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The README's example: what stands between the markers is what the README shows (ci/check compares). */
/* example: begin */
#include <mkernel.h>
#include <stdio.h>
#include <stdlib.h>

/* C[M,N] = sum over ranks of A_r[M,K] * B_r[N,K]^T: each rank holds its slice of K. */
enum { M = 100, N = 80, K = 64 };

int main(void)
{
    mk_comm_t comm = NULL;
    int rank, nranks, wrong = 0;
    float *a = malloc(sizeof(float) * M * K), *b = malloc(sizeof(float) * N * K),
          *c = malloc(sizeof(float) * M * N);
    if (!a || !b || !c)
        return 1;

    /* Rank, number of ranks and meeting point: from mkrun, torchrun, Open MPI or Slurm; alone without one. */
    int ret = mk_comm_init_env(&comm, NULL);
    if (ret)
        goto out;
    mk_comm_rank(comm, &rank);
    mk_comm_size(comm, &nranks);

    for (int i = 0; i < M * K; i++)
        a[i] = (float)(i % 7 - 3);
    for (int i = 0; i < N * K; i++)
        b[i] = (float)(rank + 1);

    /* The sums of a tile travel while the next tiles are multiplied. NULL: no epilogue, no stream. */
    ret = mk_gemm_allreduce(comm, MK_TN, M, N, K, MK_FLOAT32, a, K, b, K, c, N, NULL, NULL);
    if (ret)
        goto out;

    /* All values are small integers, so the result is exact: row sum of A, times 1 + 2 + .. + nranks. */
    for (int m = 0; m < M; m++) {
        float sum = 0;
        for (int k = 0; k < K; k++)
            sum += a[m * K + k];
        for (int n = 0; n < N; n++)
            wrong += c[m * N + n] != sum * (float)(nranks * (nranks + 1) / 2);
    }
    printf("rank %d of %d: %d of %d values wrong\n", rank, nranks, wrong, M * N);
out:
    if (ret)
        fprintf(stderr, "%s: %s\n", mk_strerror(ret), mk_last_error());
    mk_comm_destroy(comm);
    free(a);
    free(b);
    free(c);
    return ret || wrong;
}
/* example: end */
