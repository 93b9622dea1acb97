// SPDX-License-Identifier: Apache-2.0
#include "agent/config.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <map>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/text.h"
#include "common/config/toml.h"
#include "common/os/private_file.h"

namespace dtrain::agent {
namespace {

constexpr uint32_t kMostLauncherWait = 7 * 24 * 3600;  // s
constexpr char kTlsDirectory[] = "/etc/dtrain/tls";

std::unique_ptr<CLI::App> Define(Config& config) {
  auto app = std::make_unique<CLI::App>("", "dtrain-agent serve");
  app->set_help_flag();
  app->add_option("--config", config.file, "a TOML file with these flags as `name = value` lines");
  app->add_flag("--check", config.check,
                "only read the configuration and the certificates, and exit as a start would if "
                "they are unusable, otherwise with 0");
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

absl::StatusOr<Config> Parse(const std::vector<std::string>& words) {
  Config config;
  try {
    Define(config)->parse(std::vector<std::string>(words.rbegin(), words.rend()));
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(Escape(error.what()));
  }
  return config;
}

// Those that a configuration file may set.
std::vector<std::string> KeyNames() {
  Config config;
  const std::unique_ptr<CLI::App> app = Define(config);
  std::vector<std::string> names;
  for (const CLI::Option* option : app->get_options()) {
    for (const std::string& name : option->get_lnames()) {
      if (name != "config" && name != "check") names.push_back(name);
    }
  }
  return names;
}

// The flag that `entry` stands for, as the command line has it.
absl::StatusOr<std::string> WordOf(const std::string& path, const config::Entry& entry) {
  const auto wrong = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(entry.PlaceIn(path), ": ", what));
  };
  if (!entry.section.empty()) {
    return wrong(absl::StrCat("unknown section [", Escape(entry.section, 80),
                              "]: this file has none, only lines such as launcher-wait = \"2h\""));
  }
  const std::vector<std::string> names = KeyNames();
  if (std::find(names.begin(), names.end(), entry.key) == names.end()) {
    return wrong(absl::StrCat("unknown key ", Escape(entry.key, 80), DidYouMean(entry.key, names)));
  }
  if (entry.values.size() != 1) return wrong(absl::StrCat(entry.key, " takes one value"));
  std::string word = absl::StrCat("--", entry.key, "=", entry.values[0]);
  const absl::Status alone = Parse({word}).status();
  if (!alone.ok()) return wrong(alone.message());
  return word;
}

}  // namespace

absl::StatusOr<Config> ParseConfig(const std::vector<std::string>& words) {
  absl::StatusOr<Config> config = Parse(words);
  if (!config.ok() || config->file.empty()) return config;
  const std::string path = config->file;
  const absl::StatusOr<std::string> text = os::ReadTrustedFile(path);
  if (!text.ok()) {
    const std::string what = absl::StrCat("--config: ", text.status().message());
    return absl::IsPermissionDenied(text.status()) ? absl::PermissionDeniedError(what)
                                                   : absl::InvalidArgumentError(what);
  }
  const absl::StatusOr<std::vector<config::Entry>> entries = config::ParseToml(path, *text);
  if (!entries.ok()) return entries.status();
  std::vector<std::string> all = words;
  for (const config::Entry& entry : *entries) {
    const absl::StatusOr<std::string> word = WordOf(path, entry);
    if (!word.ok()) return word.status();
    // The command line is stronger.
    const std::string flag = absl::StrCat("--", entry.key);
    const bool is_given = std::any_of(words.begin(), words.end(), [&](absl::string_view given) {
      return given == flag || absl::StartsWith(given, absl::StrCat(flag, "="));
    });
    if (!is_given) all.push_back(*word);
  }
  return Parse(all);
}

std::string ConfigHelp() {
  Config config;
  return Define(config)->help();
}

}  // namespace dtrain::agent
