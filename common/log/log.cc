// SPDX-License-Identifier: Apache-2.0
#include "common/log/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <string>

namespace dtrain::log {
namespace {

// The one logger of the process. Never destroyed: a line may be written during exit.
std::shared_ptr<spdlog::logger>& Logger() {
  static auto* logger = new std::shared_ptr<spdlog::logger>();
  return *logger;
}

void Line(spdlog::level::level_enum level, absl::string_view message) {
  if (Logger() != nullptr)
    Logger()->log(level, spdlog::string_view_t(message.data(), message.size()));
}

}  // namespace

void Init(absl::string_view who, Level least) {
  auto logger = std::make_shared<spdlog::logger>(std::string(who),
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %n[%P] %l: %v");
  switch (least) {
    case Level::kDebug:
      logger->set_level(spdlog::level::debug);
      break;
    case Level::kInfo:
      logger->set_level(spdlog::level::info);
      break;
    case Level::kWarning:
      logger->set_level(spdlog::level::warn);
      break;
    case Level::kError:
      logger->set_level(spdlog::level::err);
      break;
  }
  Logger() = std::move(logger);
}

void Debug(absl::string_view message) { Line(spdlog::level::debug, message); }
void Info(absl::string_view message) { Line(spdlog::level::info, message); }
void Warn(absl::string_view message) { Line(spdlog::level::warn, message); }
void Error(absl::string_view message) { Line(spdlog::level::err, message); }

}  // namespace dtrain::log
