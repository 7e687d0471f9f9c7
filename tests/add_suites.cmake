# Adds a test for each test suite of a GoogleTest program, FOLDER.SUITE, when ctest starts. One process runs all tests of a suite.
# A suite counts as skipped if all of its tests are skipped. Results of single tests go to RESULTS, where scripts/count_tests.py
# counts them.
#
# Reads the variables FOLDER, PROGRAM and RESULTS.
if(NOT EXISTS ${PROGRAM})
  add_test(${FOLDER}.not_built ${PROGRAM})
  return()
endif()
execute_process(COMMAND ${PROGRAM} --gtest_list_tests OUTPUT_VARIABLE listed COMMAND_ERROR_IS_FATAL ANY TIMEOUT 60)
string(REGEX MATCHALL "\n[A-Za-z0-9_/]+\\." suites "\n${listed}")
foreach(suite ${suites})
  string(REGEX REPLACE "\n(.*)\\." "\\1" suite "${suite}")
  set(name ${FOLDER}.${suite})
  add_test(${name} ${PROGRAM} --gtest_filter=${suite}.* --gtest_output=xml:${RESULTS}/${name}.xml)
  # The searches for the largest models take a minute, and several with sanitizers, where the label `long` excludes them.
  set(label quick)
  if(name MATCHES "^app\\.(PipelinePlans|Presets)$")
    set(label long)
  endif()
  # Waiting threads sleep. Tests run concurrently, so spinning threads would take the cores of other tests.
  set_tests_properties(${name} PROPERTIES LABELS ${label} TIMEOUT 600 ENVIRONMENT OMP_WAIT_POLICY=passive
                       SKIP_REGULAR_EXPRESSION "PASSED  \\] 0 tests\\.\n(\\[  SKIPPED \\] [^\n]*\n)+$")
endforeach()
