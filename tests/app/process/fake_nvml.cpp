// A fake NVML with the functions that app/process/gpu_energy.cpp calls. It has one GPU, 0000:1b:00.0, whose energy
// counter grows by 500 J with each reading, at 1,755 MHz. Other bus ids are not found.
#include <cstring>

namespace {
int initialised = 0;
unsigned long long millijoules = 0;
constexpr int kNotFound = 6;
constexpr int kUninitialised = 1;
constexpr int kInvalid = 2;
constexpr int kSmClock = 1;
int gpu = 0;
}  // namespace

extern "C" {
int nvmlInit_v2() {
  ++initialised;
  return 0;
}
int nvmlShutdown() {
  --initialised;
  return 0;
}
const char* nvmlErrorString(int status) { return status == kNotFound ? "Not Found" : "Another Error"; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** device) {
  if (initialised == 0) return kUninitialised;
  if (std::strcmp(bus_id, "0000:1b:00.0") != 0) return kNotFound;
  *device = &gpu;
  return 0;
}
int nvmlDeviceGetTotalEnergyConsumption(void* device, unsigned long long* energy) {
  if (initialised == 0 || device != &gpu) return kInvalid;
  *energy = millijoules += 500'000;
  return 0;
}
int nvmlDeviceGetClockInfo(void* device, int type, unsigned* clock) {
  if (initialised == 0 || device != &gpu || type != kSmClock) return kInvalid;
  *clock = 1755;
  return 0;
}
}
