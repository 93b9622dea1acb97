// SPDX-License-Identifier: Apache-2.0
#include "agent/config.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/text.h"
#include "common/os/private_file.h"

namespace dtrain::agent {
namespace {

constexpr uint32_t kMostLauncherWait = 7 * 24 * 3600;  // s
constexpr char kTlsDirectory[] = "/etc/dtrain/tls";

std::unique_ptr<CLI::App> Define(Config& config) {
  auto app = std::make_unique<CLI::App>("", "dtrain-agent serve");
  app->set_help_flag();
  app->set_config("--config", "", "a file with these flags as `name = value` lines", false);
  app->allow_config_extras(CLI::config_extras_mode::error);
  app->add_option(
      "--state-dir", config.state_directory,
      "directory for the socket and the job records, on a file system that is cleared at boot. "
      "Default /run/dtrain-agent, or $XDG_RUNTIME_DIR/dtrain-agent for users");
  app->add_option("--listen", config.listen,
                  "ADDRESS:PORT for launchers on other machines, which must present a certificate. "
                  "Default none: then launchers connect over ssh");
  app->add_option("--status-listen", config.status_listen,
                  "[IP:]PORT for HTTP on a loopback address, with the token in http.token of the "
                  "state directory. Default none: HTTP is on http.sock there, and on --listen");
  app->add_option("--tls-ca", config.tls.ca, "certificate of the cluster's authority")
      ->default_val(absl::StrCat(kTlsDirectory, "/ca.crt"));
  app->add_option("--tls-cert", config.tls.certificate, "the node's certificate")
      ->default_val(absl::StrCat(kTlsDirectory, "/node.crt"));
  app->add_option("--tls-key", config.tls.key, "its key, which no one else may read")
      ->default_val(absl::StrCat(kTlsDirectory, "/node.key"));
  app->add_option("--tls-crl", config.tls.crl,
                  "the list of revoked certificates. Default: crl.pem beside the authority's "
                  "certificate. It must exist, unless this is none");
  app->add_option("--account-map", config.account_map,
                  "a file of `certificate = account` lines, for names that differ");
  app->add_option("--spawner", config.spawner,
                  "agent.sock of dtrain-spawner, usually /run/dtrain-spawner/agent.sock, which "
                  "starts and kills the jobs of all users, so that this agent needs no privilege "
                  "and must not be root. Default none: it does so itself");
  app->add_flag("--allow-root", config.allow_root, "allow certificates that map to root");
  app->add_option(
         "--launcher-wait", config.launcher_wait_s,
         "TIME (90s, 10m, 2h) for which a job continues after the lease while its launcher is "
         "connected but silent, for example stopped. Default 0: the job ends with the lease")
      ->transform(
          CLI::AsNumberWithUnit(std::map<std::string, uint32_t>{{"s", 1}, {"m", 60}, {"h", 3600}}))
      ->check(CLI::Range(uint32_t{0}, kMostLauncherWait));
  return app;
}

// "FILE: line N: " of the first line with which the file `path` is wrong by itself; empty when
// there is none. CLI11 tells the name at most.
std::string WrongLine(const std::string& path) {
  std::ifstream file(path);
  std::string so_far, line;
  for (int number = 1; std::getline(file, line); ++number) {
    absl::StrAppend(&so_far, line, "\n");
    Config config;
    std::istringstream lines(so_far);
    try {
      Define(config)->parse_from_stream(lines);
    } catch (const std::exception&) {
      return absl::StrCat(path, ": line ", number, ": ");
    }
  }
  return "";
}

}  // namespace

absl::StatusOr<Config> ParseConfig(const std::vector<std::string>& words) {
  Config config;
  std::unique_ptr<CLI::App> app = Define(config);
  absl::Status trusted;
  app->get_config_ptr()->check([&trusted](const std::string& path) {
    trusted = os::CheckTrustedFile(path);
    return std::string(trusted.message());
  });
  try {
    app->parse(std::vector<std::string>(words.rbegin(), words.rend()));
  } catch (const std::exception& error) {
    if (absl::IsPermissionDenied(trusted)) {
      return absl::PermissionDeniedError(absl::StrCat("--config: ", trusted.message()));
    }
    const CLI::Option* file = app->get_config_ptr();
    const std::string where = file->count() > 0 ? WrongLine(file->as<std::string>()) : "";
    return absl::InvalidArgumentError(Escape(absl::StrCat(where, error.what())));
  }
  return config;
}

std::string ConfigHelp() {
  Config config;
  return Define(config)->help();
}

}  // namespace dtrain::agent
