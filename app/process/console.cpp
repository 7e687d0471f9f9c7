#include "app/process/console.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "app/process/cores.h"
#include "app/process/launcher.h"

namespace octavo {

namespace {

// Control sequence of ECMA-48.
constexpr const char* kClearLine = "\r\x1b[2K";
constexpr const char* kYellow = "\x1b[33m";
constexpr const char* kPlain = "\x1b[0m";

// Returns the value of an environment variable, or an empty text if it is not set.
std::string variable(const char* name) { return process_environment()(name).value_or(""); }

}  // namespace

Console::Console(int descriptor) : launcher_output_(open_launcher_output()) { write_to(descriptor); }

void Console::write_to(int descriptor) {
  if (std::exchange(owned_, false)) ::close(descriptor_);
  descriptor_ = descriptor;
  terminal_ = ::isatty(descriptor) == 1 && variable("TERM") != "dumb" && find_launcher() == 0;
  use_color(LogColor::kAuto);
  struct stat status {};
  if (::fstat(descriptor, &status) != 0 || !(S_ISFIFO(status.st_mode) || S_ISCHR(status.st_mode))) return;
  // Setting O_NONBLOCK on `descriptor` would affect every process that shares it, such as the user's shell.
  const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
  const int second = ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (second < 0) return;
  descriptor_ = second;
  owned_ = true;
}

Console::~Console() {
  if (owned_) ::close(descriptor_);
  if (launcher_output_ >= 0) ::close(launcher_output_);
}

int Console::columns() const {
  if (!terminal_) return 0;
  constexpr int kUsual = 80;  // Width of a terminal that does not report one.
  winsize size{};
  return ::ioctl(descriptor_, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

// The variable NO_COLOR is described at https://no-color.org.
void Console::use_color(LogColor color) {
  const std::lock_guard lock(mutex_);
  colors_ = color == LogColor::kAlways || (color == LogColor::kAuto && terminal_ && variable("NO_COLOR").empty());
}

bool Console::has_colors() const {
  const std::lock_guard lock(mutex_);
  return colors_;
}

void Console::print(std::string_view line, bool warning) {
  const std::lock_guard lock(mutex_);
  const bool colored = warning && colors_;
  std::string text = fmt::format("{}{}{}", colored ? kYellow : "", warning ? "warning: " : "", line);
  if (colored) text += kPlain;
  write_line(text + "\n");
}

void Console::show_progress(std::string line) {
  const std::lock_guard lock(mutex_);
  if (!terminal_ || (line.empty() && progress_.empty())) return;
  const bool cleared = !progress_.empty();
  progress_ = std::move(line);
  const std::string text = (cleared ? kClearLine : "") + progress_;
  stalled_ = write(text) < text.size();
}

void Console::write_line(std::string_view line) {
  pollfd beyond{launcher_output_, POLLOUT, 0};
  if (launcher_output_ >= 0 && ::poll(&beyond, 1, 0) == 1 && (beyond.revents & POLLERR) != 0) return;
  std::string text;
  if (cut_line_) text = "\n";
  if (!progress_.empty()) text = kClearLine;
  const size_t length = text.size() + line.size();
  text += line;
  text += progress_;
  const size_t taken = write(text);
  stalled_ = taken < text.size();
  if (taken > 0) cut_line_ = taken < length;
}

size_t Console::write(std::string_view bytes) {
  size_t taken = 0;
  while (taken < bytes.size()) {
    const ssize_t written = ::write(descriptor_, bytes.data() + taken, bytes.size() - taken);
    if (written > 0) taken += static_cast<size_t>(written);
    if (written >= 0 || errno == EINTR) continue;
    if (errno != EAGAIN) break;
    pollfd ready{descriptor_, POLLOUT, 0};
    if (::poll(&ready, 1, stalled_ ? 0 : kPatienceMs) == 0) break;
  }
  return taken;
}

}  // namespace octavo
