#include "tests/parallel/ranks_fixture.h"

namespace octavo {

ProcessGroup* ranks = nullptr;

}  // namespace octavo

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  octavo::ProcessGroup group;
  octavo::ranks = &group;
  // Only the root writes --gtest_output, because all ranks run the same tests. mpirun fails if any rank fails.
  ::testing::TestEventListeners& listeners = ::testing::UnitTest::GetInstance()->listeners();
  if (!group.is_root()) delete listeners.Release(listeners.default_xml_generator());
  return RUN_ALL_TESTS();
}
