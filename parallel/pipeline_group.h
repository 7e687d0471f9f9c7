// PipelineGroup transfers the activations and gradients of micro-batches between neighbouring pipeline stages, point to
// point, in the compute dtype. With tensor parallelism each rank transfers its share of the tokens. If the stages have
// several chunks, they form a ring: the last stage sends activations to the first one, which sends gradients back.
//
// Each direction of transfers between two stages has a stream, a communicator and, at either end, a buffer. send()
// copies the tensor into the buffer, and receive() copies it out. Both copies run on the compute stream, which waits
// for an event while the buffer is in use. Transfers therefore never access the activations of a micro-batch
// themselves. A transfer of n bytes moves n bytes through the link and 2 n bytes within each GPU's memory.
//
// Every rank issues its transfers in the order of its list of step entries, and the lists of two neighbours have the
// transfers between the two in the same order (model/pipeline_schedule.h). post() starts the receive of an entry early,
// but only after the preceding entry has taken its input. Otherwise a rank could wait for data that its neighbour sends
// only after receiving data from this rank.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/arena.h"
#include "core/stream.h"
#include "parallel/mesh.h"

namespace octavo {

// Neighbours that a pipeline stage has. In a ring every stage has both.
struct StageBoundaries {
  bool has_previous = false;
  bool has_next = false;
};

class PipelineGroup {
 public:
  // Options of the transfers of a rank.
  struct Options {
    const Mesh* mesh = nullptr;  // If null, or with one pipeline stage, there are no transfers.
    StageBoundaries boundaries;
    bool training = true;  // Whether there are gradients.
    DType dtype = DType::kBFloat16;
    int64_t rows = 0, columns = 0;  // Shape of the transferred tensors.
  };
  // Takes the buffers of the transfers from `arena`.
  // Requires: the mesh and `compute` outlive the object.
  PipelineGroup(const Options& options, Arena& arena, Stream& compute);

  // Returns whether the rank has no neighbour.
  bool alone() const { return !input_ && !output_; }

  // Receives into `tensor` this stage's input from the previous stage (kActivations), or the gradient of this stage's
  // output from the next one (kGradients). receive(), post() and send() do nothing if this neighbour does not exist.
  void receive(StageData data, const Tensor& tensor) { receive(incoming(data), tensor); }
  // Starts the transfer for the next receive(), unless it has been started.
  void post(StageData data) { post(incoming(data)); }
  // Sends the output to the next stage, or the gradient of the input to the previous one.
  void send(StageData data, const Tensor& tensor) {
    send(data == StageData::kActivations ? output_ : d_input_, tensor);
  }

  // Runs every transfer of the stage once before the first step, because NCCL connects two ranks in their first
  // transfer, for which the host waits.
  // Requires: all pipeline stages call this method together.
  void warm_up();

  // Returns the streams of the transfers.
  std::vector<Stream*> streams();

 private:
  // One direction of the transfers with one neighbour.
  struct Link {
    Communicator* ranks;
    int64_t color;  // Number of the communicator (Mesh::link_color).
    bool sends;     // Whether this rank sends. Otherwise it receives.
    int peer;
    std::string what;  // Names the tensors in messages.
    Tensor buffer;
    Stream transfers;
    Event filled;         // Event after which the buffer holds the data that was received or is to be sent.
    Event free;           // Event after which the buffer may be overwritten.
    bool posted = false;  // Whether post() has started a receive whose data receive() has not taken yet.
  };
  // Returns the stage that is `distance` stages after this one in the ring.
  int64_t neighbour(int64_t distance) const;
  std::optional<Link> make_link(StageData data, int64_t sender, Arena& arena) const;
  std::optional<Link>& incoming(StageData data) { return data == StageData::kActivations ? input_ : d_output_; }
  // Makes the compute stream wait for an event of the link. Profilers show the time as an op "wait".
  void wait(Link& link, const Event& event);
  void send(std::optional<Link>& link, const Tensor& tensor);
  void post(std::optional<Link>& link);
  void receive(std::optional<Link>& link, const Tensor& tensor);

  Options options_;
  Stream* compute_;
  // Links to and from the neighbours. A link is empty if its neighbour does not exist.
  std::optional<Link> input_, output_, d_output_, d_input_;
};

}  // namespace octavo
