// PipelineGroup transfers the activations and gradients of micro-batches between neighbouring pipeline stages, point to
// point, in the compute dtype. With tensor parallelism each rank transfers its share of the tokens. If the stages have
// several chunks, they form a ring: the last stage sends activations to the first one, which sends gradients back.
//
// A transfer has a stream and a communicator of its own and a buffer at either end. send() copies the tensor into the
// buffer, and receive() copies it out, both on the compute stream, which waits by events for a buffer in use. So the
// memory of a micro-batch never takes part in a transfer. A transfer of n bytes moves n bytes through the link and 2 n
// bytes within each GPU's memory.
//
// Every rank issues its transfers in the order of its list of step entries, and the lists of two neighbours have the
// transfers between the two in the same order (model/pipeline_schedule.h). post() starts a receive early. It must be
// called after the entry before it has taken its input, so that no rank waits for data that is sent after data that the
// rank itself has yet to send.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/arena.h"
#include "core/stream.h"
#include "parallel/mesh.h"

namespace octavo {

// Ends of a pipeline stage that it shares with a neighbour. In a ring every stage has both.
struct StageEdges {
  bool has_previous = false;
  bool has_next = false;
};

class PipelineGroup {
 public:
  // Options of the transfers of a rank.
  struct Options {
    const Mesh* mesh = nullptr;  // Null or with a single pipeline stage: there are no transfers.
    StageEdges edges;
    bool training = true;  // Whether there are gradients.
    DType dtype = DType::kBFloat16;
    int64_t rows = 0, columns = 0;  // Shape of the transferred tensors.
  };
  // Takes the buffers of the transfers from `arena`. The mesh and `compute` must outlive the object.
  PipelineGroup(const Options& options, Arena& arena, Stream& compute);

  // Returns whether the rank has no neighbour.
  bool alone() const { return !input_ && !output_; }

  // Receives into a tensor of this stage the input from the previous stage (kActivations), or the gradient of the
  // output from the next one (kGradients). Without such a neighbour it does nothing, as do the next two methods.
  void receive(StageData data, const Tensor& tensor) { receive(incoming(data), tensor); }
  // Starts receive(), unless it has been started.
  void post(StageData data) { post(incoming(data)); }
  // Sends the output to the next stage, or the gradient of the input to the previous one.
  void send(StageData data, const Tensor& tensor) {
    send(data == StageData::kActivations ? output_ : d_input_, tensor);
  }

  // Runs every transfer of the stage once. NCCL connects two ranks in their first transfer, for which the host waits,
  // so this must be called before a step. All pipeline stages call it together.
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
    Event filled;         // Event after which the buffer holds data: of the neighbour, or to be sent.
    Event free;           // Event after which the buffer may be overwritten.
    bool posted = false;  // Whether a receive has been started and not yet taken.
  };
  // Returns the stage that follows this one in the ring at a distance.
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
  // Links to and from the neighbours. Empty without that neighbour.
  std::optional<Link> input_, output_, d_output_, d_input_;
};

}  // namespace octavo
