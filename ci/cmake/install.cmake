# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# cmake --install: public headers, the shared object with its links, the commands, mkernel.pc, the CMake package.
# The prefix may move afterwards: nothing installed holds an absolute path.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

function(mk_install)
    install(FILES include/mkernel.h include/mkernel_device.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
    install(DIRECTORY include/mk/dev DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/mk FILES_MATCHING PATTERN "*.h")

    install(TARGETS mkernel EXPORT mkernelTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
            INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
    foreach(link ${MK_LIBRARY_LINKS})
        install(FILES ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/${link} DESTINATION ${CMAKE_INSTALL_LIBDIR})
    endforeach()
    foreach(command mkrun mkgemm mkinfo mknic)
        if(TARGET ${command})
            install(TARGETS ${command} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
        endif()
    endforeach()

    if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
        set(MK_PC_PREFIX ${CMAKE_INSTALL_PREFIX})
        set(MK_PC_LIBDIR ${CMAKE_INSTALL_LIBDIR})
    else()
        file(RELATIVE_PATH up /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
        string(REGEX REPLACE "/$" "" up "${up}")
        set(MK_PC_PREFIX "\${pcfiledir}/${up}")
        set(MK_PC_LIBDIR "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
    endif()
    configure_file(ci/cmake/mkernel.pc.in ${CMAKE_BINARY_DIR}/mkernel.pc @ONLY)
    install(FILES ${CMAKE_BINARY_DIR}/mkernel.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

    set(package ${CMAKE_INSTALL_LIBDIR}/cmake/mkernel)
    configure_package_config_file(ci/cmake/mkernelConfig.cmake.in ${CMAKE_BINARY_DIR}/mkernelConfig.cmake
                                  INSTALL_DESTINATION ${package})
    write_basic_package_version_file(${CMAKE_BINARY_DIR}/mkernelConfigVersion.cmake COMPATIBILITY SameMinorVersion)
    install(FILES ${CMAKE_BINARY_DIR}/mkernelConfig.cmake ${CMAKE_BINARY_DIR}/mkernelConfigVersion.cmake
            DESTINATION ${package})
    install(EXPORT mkernelTargets NAMESPACE mkernel:: DESTINATION ${package})
endfunction()
