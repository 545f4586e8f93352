# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# Fuzz targets. They need clang and its libFuzzer; the rest of the build may use gcc, so every target is compiled
# by commands of its own, with AddressSanitizer and UBSan, whatever the build type.

# MK_FUZZ_CLANG: a clang that links a fuzzer, or "" with the reason in MK_FUZZ_MISSING. Looked for once.
function(mk_find_fuzzer)
    if(DEFINED CACHE{MK_FUZZ_CLANG})
        return()
    endif()
    find_program(MK_CLANG NAMES clang clang-14 clang-18)
    set(missing "")
    set(clang "")
    if(NOT MK_CLANG)
        set(missing "no clang")
    else()
        set(probe ${CMAKE_BINARY_DIR}/CMakeFiles/fuzz_probe)
        file(WRITE ${probe}.c "int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n);\n"
                              "int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) "
                              "{ return !d && n; }\n")
        execute_process(COMMAND ${MK_CLANG} -fsanitize=fuzzer,address,undefined ${probe}.c -o ${probe}
                        RESULT_VARIABLE ret OUTPUT_QUIET ERROR_QUIET)
        if(ret EQUAL 0)
            set(clang ${MK_CLANG})
        else()
            set(missing "clang has no fuzzer runtime")
        endif()
    endif()
    set(MK_FUZZ_CLANG "${clang}" CACHE INTERNAL "clang that links a fuzzer")
    set(MK_FUZZ_MISSING "${missing}" CACHE INTERNAL "why there is none")
endfunction()

# mk_fuzz(name SOURCES file... [SECONDS n]): build/tests/fuzz_NAME from the listed files (the target and the product
# files that it calls; plugin/base is added), and a ctest fuzz.NAME that runs it for n (20) seconds on the inputs of
# tests/fuzz/corpus/NAME, if there are any. ci/nightly runs the same program longer. Left out of sanitizer builds:
# it has sanitizers of its own.
function(mk_fuzz name)
    cmake_parse_arguments(F "" "SECONDS" "SOURCES;DEFS" ${ARGN})
    if(NOT F_SECONDS)
        set(F_SECONDS 20)
    endif()
    if(MK_SANITIZE)
        return()
    endif()
    mk_find_fuzzer()
    if(NOT MK_FUZZ_CLANG)
        mk_add_skip(fuzz.${name} "${MK_FUZZ_MISSING}")
        return()
    endif()
    set(dir ${CMAKE_CURRENT_BINARY_DIR}/${name}.dir)
    file(MAKE_DIRECTORY ${dir} ${CMAKE_BINARY_DIR}/tests ${CMAKE_CURRENT_BINARY_DIR}/corpus/${name})
    file(GLOB base CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/plugin/base/*.c)
    list(TRANSFORM F_DEFS PREPEND -D)
    set(flags -std=c11 -D_GNU_SOURCE ${F_DEFS} -g -O1 -fno-omit-frame-pointer
              -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined
              -I${CMAKE_SOURCE_DIR}/include -I${CMAKE_SOURCE_DIR})
    set(objects "")
    foreach(source ${F_SOURCES} ${base})
        get_filename_component(source ${source} ABSOLUTE)
        get_filename_component(folder ${source} DIRECTORY)
        string(MAKE_C_IDENTIFIER ${source} object)
        set(object ${dir}/${object}.o)
        add_custom_command(OUTPUT ${object}
            COMMAND ${MK_FUZZ_CLANG} ${flags} -I${folder} -MD -MF ${object}.d -c ${source} -o ${object}
            DEPENDS ${source} DEPFILE ${object}.d VERBATIM)
        list(APPEND objects ${object})
    endforeach()
    set(program ${CMAKE_BINARY_DIR}/tests/fuzz_${name})
    add_custom_command(OUTPUT ${program}
        COMMAND ${MK_FUZZ_CLANG} -fsanitize=fuzzer,address,undefined ${objects} -o ${program} -lm -ldl -lpthread -lrt
        DEPENDS ${objects} VERBATIM)
    add_custom_target(fuzz_${name} ALL DEPENDS ${program})
    set(seeds "")
    if(IS_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/corpus/${name})
        set(seeds ${CMAKE_CURRENT_SOURCE_DIR}/corpus/${name})
    endif()
    math(EXPR limit "${F_SECONDS} + 60")
    mk_add_test(fuzz.${name} TIMEOUT ${limit}
        COMMAND ${program} -max_total_time=${F_SECONDS} -timeout=10 -rss_limit_mb=1024 -print_final_stats=1
                -artifact_prefix=${CMAKE_BINARY_DIR}/tests/${name}- ${CMAKE_CURRENT_BINARY_DIR}/corpus/${name} ${seeds})
endfunction()
