# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# Conformance of the completion adapters, and its negative side: each mutation (MK_MUTATE in mk/dev/dev.h) and the
# wrong adapter must be caught within 10,000 chunks.

set(conformance ${CMAKE_CURRENT_SOURCE_DIR}/conformance.c ${CMAKE_CURRENT_SOURCE_DIR}/conformance_setup.c
    ${CMAKE_CURRENT_SOURCE_DIR}/nic_help.c)
set(chunks 200000)
if(MK_SANITIZE)
    set(chunks 20000)
endif()

mk_program(test_net_conformance ${conformance})
target_include_directories(test_net_conformance PRIVATE ${CMAKE_SOURCE_DIR})
set_target_properties(test_net_conformance PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)

function(mk_conformance name)
    mk_add_test(net.conformance_${name} TIMEOUT 200 COMMAND ${ARGN})
    set_tests_properties(net.conformance_${name} PROPERTIES PROCESSORS 2) # four busy threads
endfunction()

# Short by default, 2 million chunks in ci/nightly (label slow).
function(mk_conformance_both name)
    mk_conformance(${name} test_net_conformance ${ARGN} chunks=${chunks})
    mk_add_test(net.conformance_long_${name} TIMEOUT 3000 LABELS cpu slow
                COMMAND test_net_conformance ${ARGN} chunks=2000000)
    set_tests_properties(net.conformance_long_${name} PROPERTIES PROCESSORS 2)
endfunction()

mk_conformance_both(store store)
mk_conformance_both(flag_loop flag ordered=1 hostile=7)
mk_conformance_both(immediate_loop immediate hostile=7)
mk_conformance_both(immediate_loop_plain immediate)
mk_conformance_both(immediate_ofi_net immediate net=ofi provider=net)
mk_conformance_both(immediate_ofi_rxm immediate net=ofi provider=tcp+ofi_rxm)
mk_conformance_both(immediate_ofi_shm immediate net=ofi provider=shm)
mk_conformance(wrong_adapter test_net_conformance flag ordered=0 hostile=7 expect=caught)

# GPU memory through a mknic process, over a stand-in for the CUDA driver (tests/gpu/nic.sh: over the real one).
add_library(test_net_cuda SHARED fake_cuda.c fake_cuda_census.c fake_cuda_rest.c)
target_link_libraries(test_net_cuda PRIVATE Threads::Threads)
target_compile_options(test_net_cuda PRIVATE -ftls-model=initial-exec) # LeakSanitizer misreads the other one
set_target_properties(test_net_cuda PROPERTIES PREFIX "" OUTPUT_NAME libcuda SUFFIX .so.1
                      LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests/cuda)
set(stand_in LD_LIBRARY_PATH=${CMAKE_BINARY_DIR}/tests/cuda)
function(mk_conformance_gpu name)
    mk_add_test(net.conformance_gpu_${name} TIMEOUT 200 ENVIRONMENT ${stand_in}
                COMMAND test_net_conformance ${ARGN} nic=$<TARGET_FILE:mknic>)
    set_tests_properties(net.conformance_gpu_${name} PROPERTIES PROCESSORS 2)
endfunction()
math(EXPR gpu_chunks "${chunks} / 20")
mk_conformance_gpu(immediate immediate gpu=both hostile=7 chunks=${gpu_chunks})
mk_conformance_gpu(immediate_plain immediate gpu=both chunks=${gpu_chunks})
mk_conformance_gpu(immediate_large immediate gpu=both bytes=40000 chunks=${gpu_chunks} nicopt=--lanes=8)
mk_conformance_gpu(immediate_source immediate gpu=source hostile=7 chunks=${gpu_chunks})
mk_conformance_gpu(immediate_destination immediate gpu=destination chunks=${gpu_chunks} nicopt=--no-join)
mk_conformance_gpu(immediate_events immediate gpu=both chunks=${gpu_chunks} nicopt=--events)
mk_conformance_gpu(flag flag ordered=1 gpu=both hostile=7 chunks=${gpu_chunks})
mk_conformance_gpu(flag_plain flag ordered=1 gpu=both chunks=${gpu_chunks})
mk_conformance_gpu(early_nic immediate gpu=both expect=caught) # completions before the copies
set_tests_properties(net.conformance_gpu_early_nic PROPERTIES ENVIRONMENT
                     "${stand_in};FAKE_CUDA_EARLY=1;${MK_SANITIZE_ENVIRONMENT}")
mk_conformance_gpu(wrong_adapter flag ordered=0 gpu=both hostile=7 expect=caught)

# The engine's sources once more with MK_MUTATE=n; the rest of the folder comes from an archive, out of which the
# linker takes only what is still missing.
add_library(mk_net_archive STATIC EXCLUDE_FROM_ALL $<TARGET_OBJECTS:mk_net>)
function(mk_mutant n)
    set(engine engine link put adapter pace proxy proxy_cmd)
    list(TRANSFORM engine PREPEND ${CMAKE_SOURCE_DIR}/net/)
    list(TRANSFORM engine APPEND .c)
    add_executable(test_net_mutant_${n} ${conformance} ${engine})
    target_link_libraries(test_net_mutant_${n} PRIVATE mk_net_archive mk_base m dl Threads::Threads rt)
    target_include_directories(test_net_mutant_${n} PRIVATE ${CMAKE_SOURCE_DIR})
    target_compile_definitions(test_net_mutant_${n} PRIVATE MK_MUTATE=${n})
    set_target_properties(test_net_mutant_${n} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
endfunction()

foreach(n 3 4 5)
    mk_mutant(${n})
endforeach()
mk_conformance(mutant_lost_credit test_net_mutant_3 immediate hostile=7 stall=3 expect=caught)
mk_conformance(mutant_lost_credit_flag test_net_mutant_3 flag ordered=1 hostile=7 stall=3 expect=caught)
mk_conformance(mutant_early_reuse test_net_mutant_4 immediate hostile=7 expect=caught)
if(MK_SANITIZE MATCHES thread) # a source that is written while it is sent: TSan may see it first, and that counts
    set_tests_properties(net.conformance_mutant_early_reuse PROPERTIES PASS_REGULAR_EXPRESSION
                         "caught: payload;WARNING: ThreadSanitizer: data race")
endif()
mk_conformance(mutant_early_flag test_net_mutant_5 immediate hostile=7 expect=caught)
mk_conformance(mutant_early_flag_flag test_net_mutant_5 flag ordered=1 hostile=7 expect=caught)

# Order of memory accesses in the store adapter: on x86 the processor hides a missing release, TSan does not. The
# program without mutation must be clean, those with must exit with TSan's status.
include(CheckCSourceCompiles)
set(CMAKE_REQUIRED_FLAGS -fsanitize=thread)
check_c_source_compiles("int main(void) { return 0; }" MK_HAVE_TSAN)
unset(CMAKE_REQUIRED_FLAGS)
if(MK_HAVE_TSAN AND NOT MK_SANITIZE MATCHES "address")
    foreach(n 0 1 2)
        add_executable(test_net_store_${n} ${conformance} $<TARGET_OBJECTS:mk_net>)
        target_link_libraries(test_net_store_${n} PRIVATE mk_base m dl Threads::Threads rt)
        target_include_directories(test_net_store_${n} PRIVATE ${CMAKE_SOURCE_DIR})
        target_compile_definitions(test_net_store_${n} PRIVATE MK_MUTATE=${n})
        target_compile_options(test_net_store_${n} PRIVATE -fsanitize=thread)
        target_link_options(test_net_store_${n} PRIVATE -fsanitize=thread)
        set_target_properties(test_net_store_${n} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
        mk_conformance(tsan_store_${n} ${CMAKE_CURRENT_SOURCE_DIR}/caught.sh ${n} $<TARGET_FILE:test_net_store_${n}>
                       store chunks=10000)
    endforeach()
endif()
