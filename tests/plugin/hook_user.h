/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#pragma once

#ifndef HOOK_USER
#define HOOK_USER user
#endif
#define USER_NAME(prefix, name) prefix##_##name
#define USER_NAME2(prefix, name) USER_NAME(prefix, name)
#define USER(name) USER_NAME2(HOOK_USER, name)

/* Each one call of a hooked function. */
int USER(direct)(void);
int USER(loop)(void); /* rank 0 of 2; nobody brings it together with the profiler, so it ends off */
int USER(send)(void); /* of the same */
int USER(open)(void); /* of another one, which is open until it has been called often */
int USER(data)(void);
int USER(address)(void);
int USER(chosen)(void);
int USER(gemm)(void);
/* Where a slot of this object leads now. */
void *USER(slot)(void);
/* dlsym and dlvsym, called from this object. */
void *USER(lookup)(void *handle, const char *name);
void *USER(vlookup)(void *handle, const char *name, const char *version);
