# Contents of `cmake --install` and of CPack's packages: the program, its configs, the scripts for training and the documentation.
include(GNUInstallDirs)
set(octavo_share ${CMAKE_INSTALL_DATADIR}/octavo)

# The installed program finds libraries outside the system's directories (a CUDA toolkit, packages of pip) where the linker found them.
set_target_properties(octavo PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
install(TARGETS octavo)
install(DIRECTORY configs DESTINATION ${octavo_share})

file(GLOB octavo_scripts CONFIGURE_DEPENDS scripts/*.py)
# These scripts are for developers only.
list(FILTER octavo_scripts EXCLUDE REGEX "/(check_layers|count_tests|fetch_flash_attention|fp8_loss_parity|make_golden)\\.py$")
install(PROGRAMS ${octavo_scripts} scripts/launch_mpirun.sh scripts/launch_slurm.sh DESTINATION ${octavo_share}/scripts)
install(FILES scripts/common.sh scripts/launching.sh scripts/requirements.txt DESTINATION ${octavo_share}/scripts)
install(DIRECTORY scripts/converting scripts/tokenizing scripts/lm_eval DESTINATION ${octavo_share}/scripts PATTERN __pycache__ EXCLUDE)

install(FILES README.md CHANGELOG.md LICENSE THIRD_PARTY_NOTICES.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR})

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "The Octavo authors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Pretrains Llama-3-family language models")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_DEPENDS openmpi-bin)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS python3)
# Dependencies of the package. CUDA's libraries have no information for dpkg-shlibdeps, so dpkg is asked for their packages.
# Libraries that belong to no package are named in the description.
find_program(DPKG_SHLIBDEPS dpkg-shlibdeps)
if(DPKG_SHLIBDEPS)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
endif()
set(octavo_unpackaged "")
if(OCTAVO_HAS_CUDA)
  foreach(library ${CUDART_LIBRARY} ${CUBLASLT_LIBRARY} ${CUDNN_LIBRARY} ${NCCL_LIBRARY})
    file(REAL_PATH ${library} file)
    execute_process(COMMAND dpkg-query --search ${file} OUTPUT_VARIABLE owner ERROR_QUIET)
    if(owner MATCHES "^([a-z0-9.+-]+)")
      string(APPEND CPACK_DEBIAN_PACKAGE_DEPENDS ", ${CMAKE_MATCH_1}")
    else()
      get_filename_component(name ${file} NAME)
      string(APPEND octavo_unpackaged " ${name}")
    endif()
  endforeach()
endif()
if(octavo_unpackaged)
  set(CPACK_DEBIAN_PACKAGE_DESCRIPTION "${CPACK_PACKAGE_DESCRIPTION_SUMMARY}
 The program also needs these libraries, which belonged to no package where it was built:${octavo_unpackaged}.")
endif()
include(CPack)
