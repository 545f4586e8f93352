/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The pair recogniser (mk/pair.h): event lists, and random programs with an oracle. `pair model N`: N programs. Built with
 * MK_PAIR_MUTABLE: its memory, and each mutation must be caught. */
#include "tests/unit/pair_help.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int lists(void)
{
    return pair_rules() + pair_rules_start() + pair_rules_comm() + pair_rules_life() + pair_hostile();
}

#ifdef MK_PAIR_MUTABLE
int mk_pair_mutant;
static const struct {
    int n;
    const char *what;
} mutants[] = {{0, "nothing left out"},
               {201, "a switch takes effect one operation late"},
               {202, "operators that are no sums"},
               {203, "MK_FUSE=graph and no capture"},
               {204, "replays of graphs on other streams"},
               {205, "eager order between streams"},
               {206, "order of a capture with what was before"},
               {207, "order of two branches of a capture"},
               {208, "events for those who come after"},
               {209, "the size of the communicator that is tied"},
               {210, "abort at an unhooked call"},
               {211, "W collectives have to be witnessed"},
               {212, "errors stick"},
               {213, "launches of graphs that nobody counts"},
               {214, "counts that are no multiple of the granule"},
               {215, "calls of a size class are counted"},
               {216, "a switch heard in the midst of the last call before another"},
               {217, "calls that the profiler did not see before the tie"},
               {218, "a witness that is lost before the agreement"},
               {221, "the weight in a site's key"},
               {222, "beta"},
               {223, "never, where the first call was too early"},
               {224, "the record of (N, K) is for captures only"},
               {225, "sites have to be learned"},
               {226, "no order before G where another communicator lives"},
               {231, "other dependencies than G"},
               {232, "the end of the proof"},
               {233, "what was enqueued between"},
               {234, "own launches on blocking streams"},
               {235, "another operation after the GEMM"},
               {236, "C is what is sent"},
               {237, "the dtype of C"},
               {238, "gaps between C's rows"},
               {239, "all of C is sent"},
               {240, "learning"},
               {241, "recvbuff in A, B, bias"},
               {242, "recvbuff in a part of C"},
               {243, "an earlier operation of the communicator"},
               {244, "a failed communicator's calls"},
               {245, "alignment may not choose NCCL"},
               {246, "groups may not choose NCCL"},
               {247, "streams may not choose NCCL"},
               {248, "a larger group is no single operation"},
               {249, "calls that were not told"},
               {250, "members of a group that were not told"},
               {251, "in a group NCCL has no node yet"}};

/* Who notices: 0 nobody, 1 a list, 2 the model, -1 something else went wrong. */
static int noticed(int mutant)
{
    int status = 0;
    fflush(NULL);
    const pid_t child = fork();
    if (!child) {
        mk_pair_mutant = mutant;
        if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr))
            _exit(3);
        _exit(lists() ? 1 : pair_model(300) ? 2 : 0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) > 2)
        return -1;
    return WEXITSTATUS(status);
}

int main(void)
{
    static const char *const who[] = {"something went wrong", "nobody", "a list", "the model"};
    int bad = pair_memory();
    for (size_t i = 0; i < sizeof(mutants) / sizeof(mutants[0]); i++) {
        const int n = noticed(mutants[i].n);
        printf("%d, without \"%s\": noticed by %s\n", mutants[i].n, mutants[i].what, who[n + 1]);
        bad += mutants[i].n ? n < 1 : n != 0;
    }
    return bad ? 1 : 0;
}
#else
int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "model"))
        return pair_model((unsigned)strtoul(argv[2], NULL, 10)) ? 1 : 0;
    return lists() ? 1 : 0;
}
#endif
