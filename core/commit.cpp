#include "core/commit.h"

#include "commit_of_build.h"

namespace octavo {

const char* build_commit() { return kCommitOfBuild; }

}  // namespace octavo
