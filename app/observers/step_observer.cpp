#include "app/observers/step_observer.h"

#include "app/observers/corruption_watch.h"
#include "app/observers/fp8_watch.h"
#include "app/observers/slow_rank_watch.h"
#include "app/observers/trace_watch.h"

namespace octavo {

std::vector<std::unique_ptr<StepObserver>> make_observers(const ObserverContext& context) {
  std::vector<std::unique_ptr<StepObserver>> observers;
  observers.push_back(std::make_unique<CorruptionWatch>(context));
  observers.push_back(std::make_unique<Fp8Watch>(context));
  observers.push_back(std::make_unique<SlowRankWatch>(context));
  observers.push_back(std::make_unique<TraceWatch>(context));
  return observers;
}

}  // namespace octavo
