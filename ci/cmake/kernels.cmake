# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# CUDA kernels: compiled by nvcc into a fat binary, embedded in the shared object as plain bytes, loaded through the
# driver API. CMake's CUDA language is not used: the object needs no CUDA runtime and loads anywhere.

# Hopper code, and portable code for sm_80 and later without the Hopper paths.
set(MK_NVCC_FLAGS -std=c++17 -O3 --Werror all-warnings
    -gencode arch=compute_90a,code=sm_90a -gencode arch=compute_80,code=compute_80)

# MK_HAVE_NVCC, MK_NVCC_PATH; says what happens without.
function(mk_find_nvcc)
    set(path "")
    if(MK_NVCC STREQUAL "auto")
        find_program(MK_NVCC_FOUND nvcc HINTS /usr/local/cuda/bin)
        if(MK_NVCC_FOUND)
            set(path ${MK_NVCC_FOUND})
        endif()
    elseif(NOT MK_NVCC STREQUAL "off")
        set(path ${MK_NVCC})
    endif()
    if(path)
        message(STATUS "kernels: built with ${path}")
        set(MK_HAVE_NVCC TRUE PARENT_SCOPE)
        set(MK_NVCC_PATH ${path} PARENT_SCOPE)
    else()
        message(STATUS "kernels: left out (no nvcc); the CPU executor is complete")
        set(MK_HAVE_NVCC FALSE PARENT_SCOPE)
    endif()
endfunction()

# mk_kernels(target file.cu...): adds to `target`, for every file, the bytes from mk_kernels_FILE to
# mk_kernels_FILE_end (hidden symbols): a fat binary for cuModuleLoadData. Without nvcc: nothing; ask MK_HAVE_NVCC.
function(mk_kernels target)
    if(NOT MK_HAVE_NVCC)
        return()
    endif()
    foreach(source ${ARGN})
        get_filename_component(source ${source} ABSOLUTE)
        get_filename_component(name ${source} NAME_WE)
        set(MK_EMBED_SYMBOL mk_kernels_${name})
        set(MK_EMBED_FILE ${CMAKE_CURRENT_BINARY_DIR}/${name}.fatbin)
        set(assembly ${CMAKE_CURRENT_BINARY_DIR}/${name}.embed.S)
        configure_file(${CMAKE_SOURCE_DIR}/ci/cmake/embed.S.in ${assembly} @ONLY)
        add_custom_command(OUTPUT ${MK_EMBED_FILE}
            COMMAND ${MK_NVCC_PATH} -fatbin ${MK_NVCC_FLAGS} -I${CMAKE_SOURCE_DIR}/include
                    -I${CMAKE_SOURCE_DIR}/fused -MD -MF ${MK_EMBED_FILE}.d -o ${MK_EMBED_FILE} ${source}
            DEPENDS ${source} DEPFILE ${MK_EMBED_FILE}.d VERBATIM COMMENT "nvcc ${name}.cu")
        set_source_files_properties(${assembly} PROPERTIES OBJECT_DEPENDS ${MK_EMBED_FILE})
        target_sources(${target} PRIVATE ${assembly})
    endforeach()
endfunction()
