# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# Functions that keep the folders' CMakeLists short: libraries, programs, tests. Beside it: fuzz.cmake (mk_fuzz),
# kernels.cmake (mk_find_nvcc, mk_kernels), install.cmake (mk_install).

set(MK_SANITIZE "" CACHE STRING "gcc sanitizers, e.g. address,undefined or thread")
if(MK_SANITIZE)
    add_compile_options(-fsanitize=${MK_SANITIZE} -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
    add_link_options(-fsanitize=${MK_SANITIZE})
    # For every ctest; the reasons of the suppressions stand in their files.
    set(suppressions ${CMAKE_SOURCE_DIR}/ci/suppressions)
    set(MK_SANITIZE_ENVIRONMENT
        ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1:check_initialization_order=1
        UBSAN_OPTIONS=print_stacktrace=1
        LSAN_OPTIONS=suppressions=${suppressions}/lsan.txt:print_suppressions=0
        TSAN_OPTIONS=suppressions=${suppressions}/tsan.txt:second_deadlock_stack=1)
    # OpenBLAS is not instrumented, and its two names make a suppression by library end the program.
    if(MK_SANITIZE MATCHES thread)
        list(APPEND MK_SANITIZE_ENVIRONMENT MK_GEMM=builtin)
    endif()
endif()

include(${CMAKE_CURRENT_LIST_DIR}/fuzz.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/kernels.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/install.cmake)

# An object library of the product: everything is in the shared object and in the commands.
function(mk_object_library name)
    add_library(${name} OBJECT ${ARGN})
    target_include_directories(${name} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
endfunction()

# A program that links all object libraries (commands, tests, benchmarks), so that it may use include/mk.
function(mk_program name)
    add_executable(${name} ${ARGN})
    target_link_libraries(${name} PRIVATE mk_base mk_net mk_tuner mk_fused m dl Threads::Threads rt)
endfunction()

# mk_test(folder name LABELS label... TIMEOUT s SOURCES file... [LIBS lib...] [ARGS ...]): one program, one ctest
# "folder.name"; exit 77 is a skip.
function(mk_test folder name)
    cmake_parse_arguments(T "" "TIMEOUT" "LABELS;SOURCES;LIBS;ARGS;DEFS" ${ARGN})
    mk_program(test_${folder}_${name} ${T_SOURCES})
    target_link_libraries(test_${folder}_${name} PRIVATE ${T_LIBS})
    target_compile_definitions(test_${folder}_${name} PRIVATE ${T_DEFS})
    set_target_properties(test_${folder}_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
    target_include_directories(test_${folder}_${name} PRIVATE ${CMAKE_SOURCE_DIR})
    mk_add_test(${folder}.${name} TIMEOUT ${T_TIMEOUT} LABELS ${T_LABELS}
                COMMAND test_${folder}_${name} ${T_ARGS})
endfunction()

# mk_add_test(folder.name [TIMEOUT s] [LABELS label...] COMMAND ...): a ctest of any command (a script, mkrun with
# a program); exit 77 is a skip. Labels: cpu (default), gpu, vm, slow.
function(mk_add_test name)
    cmake_parse_arguments(T "" "TIMEOUT" "LABELS;COMMAND;ENVIRONMENT" ${ARGN})
    add_test(NAME ${name} COMMAND ${T_COMMAND})
    if(NOT T_TIMEOUT)
        set(T_TIMEOUT 60)
    endif()
    if(NOT T_LABELS)
        set(T_LABELS cpu)
    endif()
    if(MK_SANITIZE)
        math(EXPR T_TIMEOUT "${T_TIMEOUT} * 5")
    endif()
    set_tests_properties(${name} PROPERTIES TIMEOUT ${T_TIMEOUT} LABELS "${T_LABELS}" SKIP_RETURN_CODE 77)
    set_tests_properties(${name} PROPERTIES ENVIRONMENT "${T_ENVIRONMENT};${MK_SANITIZE_ENVIRONMENT}")
endfunction()

# A ctest that cannot run here, with the reason.
function(mk_add_skip name reason)
    mk_add_test(${name} COMMAND sh -c "echo 'skip: ${name}: ${reason}' && exit 77")
endfunction()
