#include "tests/parallel/ranks_fixture.h"

namespace octavo {

ProcessGroup* ranks = nullptr;

}  // namespace octavo

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  octavo::ProcessGroup group;
  octavo::ranks = &group;
  return RUN_ALL_TESTS();
}
