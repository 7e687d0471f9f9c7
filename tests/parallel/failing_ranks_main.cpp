// A program whose last rank fails. failing_ranks_check.py starts it under mpirun and checks what the other ranks do.
//
//   octavo_failing_ranks FAILURE COLLECTIVE PACE_S TIMEOUT_S
//
// FAILURE is how the last rank fails, and COLLECTIVE is what the other ranks call then. PACE_S scales the pauses
// between collectives, in seconds. TIMEOUT_S is the time limit of a collective.
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include "parallel/mesh.h"

namespace {

void fail(const std::string& how) {
  if (how == "sleeps") pause();
  if (how == "exits") std::_Exit(0);  // MPI is not finalized.
  if (how == "fails") std::_Exit(7);
  if (how == "killed") raise(SIGKILL);
  if (how == "stopped") raise(SIGSTOP);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace octavo;
  if (argc != 5) return 2;
  const std::string collective = argv[2];
  ProcessGroup group;
  group.watchdog().set_timeout(std::atof(argv[4]));
  Stream stream = Stream::cpu();
  Mesh mesh({}, group, stream);
  std::vector<float> values(1000, 1.0F);
  const Tensor tensor(values.data(), DType::kFloat32, {static_cast<int64_t>(values.size())});
  for (int i = 0; i < 3; ++i) mesh.world().all_reduce_sum(tensor, stream, "the first values");

  // Together these barriers take longer than the time limit, but no single one does.
  for (int i = 0; i < 4; ++i) {
    usleep(static_cast<useconds_t>(std::atof(argv[3]) * 0.4 * 1e6));
    group.barrier();
  }
  if (group.rank() == group.size() - 1) fail(argv[1]);
  if (collective == "all_reduce") mesh.world().all_reduce_sum(tensor, stream, "gradients");
  if (collective == "barrier") group.barrier();
  if (collective == "agreement") group.throw_on_all_ranks([] {});
  // Reading files on the last rank takes longer than a collective may take.
  if (collective == "files") {
    const double seconds = group.rank() == group.size() - 1 ? std::atof(argv[3]) * 2.5 : 0;
    group.throw_file_errors_on_all_ranks("reading the checkpoint",
                                         [&] { usleep(static_cast<useconds_t>(seconds * 1e6)); });
  }
  return collective == "finalize" ? 0 : 3;
}
