// The commit that this program was built from.
#pragma once

namespace octavo {

// "dbf46c3", with "-dirty" where files were changed since; "unknown" where the sources were no git checkout.
const char* build_commit();

}  // namespace octavo
