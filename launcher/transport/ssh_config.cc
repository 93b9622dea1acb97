// SPDX-License-Identifier: Apache-2.0
#include "launcher/transport/ssh_config.h"

#include <poll.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/text.h"
#include "launcher/transport/bootstrap.h"
#include "launcher/transport/child.h"

namespace dtrain::transport {
namespace {

constexpr Duration kReadLimit = std::chrono::seconds(10);
constexpr size_t kMaxDump = 1 << 20;

// libssh does not know them. What one of them forbids must not be allowed because of that.
constexpr absl::string_view kOnlyOpenSsh[] = {"BindInterface",
                                              "CertificateFile",
                                              "ForkAfterAuthentication",
                                              "ForwardAgent",
                                              "HostbasedAuthentication",
                                              "KnownHostsCommand",
                                              "IPQoS",
                                              "NoHostAuthenticationForLocalhost",
                                              "PermitLocalCommand",
                                              "PKCS11Provider",
                                              "ProxyUseFdpass",
                                              "RefuseConnection",
                                              "RekeyLimit",
                                              "RevokedHostKeys",
                                              "SessionType",
                                              "SetEnv",
                                              "StdinNull",
                                              "Tunnel",
                                              "VerifyHostKeyDNS"};

// Of a session for people or for other ends than ours, of files that hosts' keys are written to, of
// what OpenSSH has already applied when it prints this, or with flags of our own in their place.
constexpr absl::string_view kWithoutMeaning[] = {"AddKeysToAgent",
                                                 "BatchMode",
                                                 "CanonicalDomains",
                                                 "CanonicalizeFallbackLocal",
                                                 "CanonicalizeHostname",
                                                 "CanonicalizeMaxDots",
                                                 "CanonicalizePermittedCNAMEs",
                                                 "CASignatureAlgorithms",
                                                 "ChallengeResponseAuthentication",
                                                 "ChannelTimeout",
                                                 "CheckHostIP",
                                                 "Cipher",
                                                 "ClearAllForwardings",
                                                 "Compression",
                                                 "CompressionLevel",
                                                 "ConnectionAttempts",
                                                 "ConnectTimeout",
                                                 "ControlMaster",
                                                 "ControlPersist",
                                                 "DynamicForward",
                                                 "EnableEscapeCommandline",
                                                 "EnableSSHKeysign",
                                                 "EscapeChar",
                                                 "ExitOnForwardFailure",
                                                 "FingerprintHash",
                                                 "ForwardX11",
                                                 "ForwardX11Timeout",
                                                 "ForwardX11Trusted",
                                                 "GatewayPorts",
                                                 "GSSAPIClientIdentity",
                                                 "GSSAPIDelegateCredentials",
                                                 "GSSAPIKexAlgorithms",
                                                 "GSSAPIKeyExchange",
                                                 "GSSAPIRenewalForcesRekey",
                                                 "GSSAPIServerIdentity",
                                                 "GSSAPITrustDns",
                                                 "HashKnownHosts",
                                                 "Host",
                                                 "HostbasedAcceptedAlgorithms",
                                                 "HostbasedKeyTypes",
                                                 "IgnoreUnknown",
                                                 "KbdInteractiveAuthentication",
                                                 "KbdInteractiveDevices",
                                                 "LocalForward",
                                                 "LogLevel",
                                                 "LogVerbose",
                                                 "NumberOfPasswordPrompts",
                                                 "ObscureKeystrokeTiming",
                                                 "PasswordAuthentication",
                                                 "PermitRemoteOpen",
                                                 "Protocol",
                                                 "RemoteCommand",
                                                 "RemoteForward",
                                                 "RequestTTY",
                                                 "RhostsRSAAuthentication",
                                                 "RSAAuthentication",
                                                 "SecurityKeyProvider",
                                                 "SendEnv",
                                                 "ServerAliveCountMax",
                                                 "ServerAliveInterval",
                                                 "StreamLocalBindMask",
                                                 "StreamLocalBindUnlink",
                                                 "SyslogFacility",
                                                 "Tag",
                                                 "TCPKeepAlive",
                                                 "TunnelDevice",
                                                 "UpdateHostKeys",
                                                 "UsePrivilegedPort",
                                                 "VisualHostKey",
                                                 "WarnWeakCrypto",
                                                 "XAuthLocation"};

// Values that mean the same as no such keyword.
struct UsualValue {
  absl::string_view keyword, value;
};
constexpr UsualValue kUsual[] = {{"IPQoS", "lowdelay throughput"},
                                 {"IPQoS", "af21 cs1"},
                                 {"IPQoS", "ef none"},
                                 {"IPQoS", "ef cs0"},
                                 {"RekeyLimit", "0 0"},
                                 {"SessionType", "default"}};

bool IsUnset(absl::string_view value) {
  return value.empty() || value == "none" || value == "no" || value == "false" || value == "0";
}

// What neither we nor libssh obey, nor can be left out: it may forbid something.
std::string OnlyOpenSshKeyword(absl::string_view key, absl::string_view value) {
  // For it alone "none" asks for something.
  if (key.empty() || (IsUnset(value) && key != "sessiontype")) return "";
  for (const UsualValue& usual : kUsual) {
    if (absl::EqualsIgnoreCase(key, usual.keyword) && value == usual.value) return "";
  }
  for (absl::string_view keyword : kOnlyOpenSsh) {
    if (absl::EqualsIgnoreCase(key, keyword)) return std::string(keyword);
  }
  for (absl::string_view keyword : kWithoutMeaning) {
    if (absl::EqualsIgnoreCase(key, keyword)) return "";
  }
  return Escape(key, 60);  // of an OpenSSH that is newer than this list
}

std::vector<std::string> Files(absl::string_view value) {
  return absl::StrSplit(value, ' ', absl::SkipEmpty());
}

void Set(SshSettings* s, absl::string_view key, absl::string_view value) {
  auto word = [&] { return value == "none" ? std::string() : std::string(value); };
  int port = 0;
  if (key == "hostname") {
    s->host_name = std::string(value);
  } else if (key == "user") {
    s->user = std::string(value);
  } else if (key == "port") {
    if (absl::SimpleAtoi(value, &port) && port > 0 && port < 65536) {
      s->port = static_cast<uint16_t>(port);
    }
  } else if (key == "hostkeyalias") {
    s->host_key_alias = word();
  } else if (key == "stricthostkeychecking") {
    s->host_key_check = value == "accept-new" ? SshSettings::HostKeyCheck::kAcceptNew
                        : value == "false" || value == "no" || value == "off"
                            ? SshSettings::HostKeyCheck::kOff
                            : SshSettings::HostKeyCheck::kStrict;
  } else if (key == "userknownhostsfile") {
    s->user_known_hosts = Files(value);
  } else if (key == "globalknownhostsfile") {
    s->global_known_hosts = Files(value);
  } else if (key == "identityfile") {
    if (value != "none") s->identity_files.emplace_back(value);
  } else if (key == "identitiesonly") {
    s->identities_only = value == "yes";
  } else if (key == "pubkeyauthentication") {
    s->public_key_allowed = value != "no" && value != "false";
  } else if (key == "identityagent") {
    s->identity_agent = std::string(value);
  } else if (key == "proxycommand") {
    s->proxy_command = word();
  } else if (key == "proxyjump") {
    s->proxy_jump = word();
  } else if (key == "addressfamily") {
    s->address_family = std::string(value);
  } else if (key == "bindaddress") {
    s->bind_address = word();
  } else if (key == "ciphers") {
    s->ciphers = std::string(value);
  } else if (key == "macs") {
    s->macs = std::string(value);
  } else if (key == "kexalgorithms") {
    s->key_exchange = std::string(value);
  } else if (key == "hostkeyalgorithms") {
    s->host_key_algorithms = std::string(value);
  } else if (key == "pubkeyacceptedalgorithms" || key == "pubkeyacceptedkeytypes") {
    s->public_key_algorithms = std::string(value);
  } else if (key == "requiredrsasize") {
    if (!absl::SimpleAtoi(value, &s->required_rsa_size)) {
      s->only_openssh.emplace_back("RequiredRSASize");
    }
  } else if (key == "controlpath") {
    s->control_path = word();
  } else if (key == "gssapiauthentication") {
    s->kerberos_allowed = !IsUnset(value);
  } else if (key == "preferredauthentications") {
    if (!absl::StrContains(value, "publickey")) {
      s->only_openssh.emplace_back("PreferredAuthentications");
    }
  } else if (std::string only = OnlyOpenSshKeyword(key, value); !only.empty()) {
    s->only_openssh.push_back(std::move(only));
  }
}

bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

// A line for keys that are revoked, or for those of an authority that signs hosts' keys.
std::string MarkerIn(const std::string& known_hosts) {
  std::ifstream in(known_hosts);
  for (std::string line; std::getline(in, line);) {
    const absl::string_view text = absl::StripLeadingAsciiWhitespace(line);
    for (absl::string_view marker : {"@revoked", "@cert-authority"}) {
      if (absl::StartsWith(text, marker)) return absl::StrCat(marker, " in ", Escape(known_hosts));
    }
  }
  return "";
}

// "${HOME}/key", which OpenSSH replaces in names of files.
bool HasVariable(absl::string_view name) { return absl::StrContains(name, "${"); }

bool IsOnHardware(const std::string& key) {
  std::string type;
  std::ifstream(key + ".pub") >> type;
  return absl::StartsWith(type, "sk-");
}

bool HasTicket() {
  return std::getenv("KRB5CCNAME") != nullptr || Exists(absl::StrCat("/tmp/krb5cc_", geteuid()));
}

// `for_command`: with ForkAfterAuthentication, ssh prints nothing unless it has one to run.
std::vector<std::string> DumpCommand(const Target& target, const std::string& config_file,
                                     bool for_command) {
  std::vector<std::string> argv = {"ssh", "-G", "-T"};
  if (for_command) argv.insert(argv.end(), {"-o", "RemoteCommand=none"});
  if (!config_file.empty()) argv.insert(argv.end(), {"-F", config_file});
  if (!target.user.empty()) argv.insert(argv.end(), {"-l", target.user});
  if (target.port != 0) argv.insert(argv.end(), {"-p", absl::StrCat(target.port)});
  argv.insert(argv.end(), {"--", target.host});
  if (for_command) argv.emplace_back("/bin/sh");
  return argv;
}

absl::Status Append(int fd, std::string* out, bool* open) {
  char buffer[16384];
  ssize_t n = read(fd, buffer, sizeof(buffer));
  if (n > 0) out->append(buffer, static_cast<size_t>(n));
  *open = n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN));
  if (out->size() > kMaxDump) return absl::ResourceExhaustedError("ssh -G printed too much");
  return absl::OkStatus();
}

// Reads both outputs to their end.
absl::Status Collect(const Child& child, int cancel, std::string* out, std::string* err) {
  TimePoint deadline = Clock::now() + kReadLimit;
  bool out_open = true, err_open = true;
  while (out_open || err_open) {
    pollfd p[3] = {{out_open ? child.stream.get() : -1, POLLIN, 0},
                   {err_open ? child.error.get() : -1, POLLIN, 0},
                   {cancel, POLLIN, 0}};
    auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return absl::DeadlineExceededError("`ssh -G` did not end");
    if (poll(p, 3, static_cast<int>(left)) < 0 && errno != EINTR) break;
    if (p[2].revents != 0) return absl::CancelledError("given up");
    absl::Status status;
    if (p[0].revents != 0) status.Update(Append(child.stream.get(), out, &out_open));
    if (p[1].revents != 0) status.Update(Append(child.error.get(), err, &err_open));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

SshSettings ParseSshSettings(absl::string_view dump) {
  SshSettings settings;
  for (absl::string_view line : absl::StrSplit(dump, '\n')) {
    std::pair<absl::string_view, absl::string_view> kv =
        absl::StrSplit(line, absl::MaxSplits(' ', 1));
    Set(&settings, kv.first, absl::StripAsciiWhitespace(kv.second));
  }
  return settings;
}

absl::StatusOr<std::string> ExpandTokens(absl::string_view text, const TokenValues& values) {
  std::string out;
  if (absl::StartsWith(text, "~/")) {
    out = values.home;
    text.remove_prefix(1);
  }
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    char token = ++i < text.size() ? text[i] : '\0';
    switch (token) {
      case '%':
        out += '%';
        break;
      case 'h':
        out += values.host;
        break;
      case 'n':
        out += values.original_host;
        break;
      case 'p':
        out += values.port;
        break;
      case 'r':
        out += values.remote_user;
        break;
      case 'u':
        out += values.local_user;
        break;
      case 'd':
        out += values.home;
        break;
      default:
        return absl::InvalidArgumentError(
            absl::StrCat("the ssh configuration uses %", Escape(std::string(1, token)), " in ",
                         Escape(text), ", which dtrain does not know; use --rsh 'ssh {host}'"));
    }
  }
  return out;
}

TokenValues TokensFor(const SshSettings& settings, const Target& target) {
  TokenValues values;
  values.host = settings.host_name;
  values.original_host = target.host;
  values.port = absl::StrCat(settings.port);
  values.remote_user = settings.user;
  passwd entry, *found = nullptr;
  char buffer[4096];
  getpwuid_r(geteuid(), &entry, buffer, sizeof(buffer), &found);
  if (found != nullptr) {
    values.local_user = found->pw_name;
    values.home = found->pw_dir;
  }
  return values;
}

std::string WhatNeedsOpenSsh(const SshSettings& settings, const TokenValues& tokens) {
  if (!settings.only_openssh.empty()) return absl::StrJoin(settings.only_openssh, ", ");
  struct stat control;
  if (!settings.control_path.empty() && stat(settings.control_path.c_str(), &control) == 0 &&
      S_ISSOCK(control.st_mode)) {
    return absl::StrCat("the connection at ControlPath ", Escape(settings.control_path));
  }
  if (!ExpandTokens(settings.proxy_command, tokens).ok()) return "the tokens in ProxyCommand";
  if (settings.kerberos_allowed && HasTicket()) return "GSSAPIAuthentication and a ticket";
  for (const auto& files : {settings.user_known_hosts, settings.global_known_hosts}) {
    for (const std::string& name : files) {
      const auto file = ExpandTokens(name, tokens);
      if (!file.ok() || HasVariable(name)) return absl::StrCat("the tokens in ", Escape(name));
      if (std::string marker = MarkerIn(*file); !marker.empty()) return marker;
    }
  }
  for (const std::string& name : settings.identity_files) {
    const auto key = ExpandTokens(name, tokens);
    if (!key.ok() || HasVariable(name)) return absl::StrCat("the tokens in ", Escape(name));
    if (Exists(*key + "-cert.pub"))
      return absl::StrCat("the certificate ", Escape(*key), "-cert.pub");
    if (IsOnHardware(*key)) return absl::StrCat("the FIDO key ", Escape(*key));
  }
  return "";
}

std::string FastCiphersFirst(absl::string_view ciphers) {
  std::vector<absl::string_view> fast, others;
  for (absl::string_view cipher : absl::StrSplit(ciphers, ',', absl::SkipEmpty())) {
    (absl::StrContains(cipher, "-gcm") ? fast : others).push_back(cipher);
  }
  fast.insert(fast.end(), others.begin(), others.end());
  return absl::StrJoin(fast, ",");
}

absl::StatusOr<SshSettings> ReadSshSettings(const Target& target, const std::string& config_file,
                                            int cancel) {
  std::string out, err;
  for (const bool for_command : {false, true}) {
    out.clear();
    err.clear();
    auto child = StartChild(DumpCommand(target, config_file, for_command), /*stdout_apart=*/false);
    if (!child.ok()) {
      return absl::Status(
          child.status().code(),
          absl::StrCat(
              "the ssh configuration is read with OpenSSH's own client: ", child.status().message(),
              absl::IsNotFound(child.status()) ? "; install openssh-client" : ""));
    }
    absl::Status status = Collect(*child, cancel, &out, &err);
    if (!status.ok()) SignalChild(child->process, SIGKILL, /*whole_group=*/true);
    auto exit = os::WaitAndReap(child->process.pidfd.get());
    if (!status.ok()) return status;
    SshSettings settings = ParseSshSettings(out);
    if (exit.ok() && exit->code == 0 && exit->signal == 0 && !settings.host_name.empty()) {
      return settings;
    }
    if (!absl::StrContains(err, "fork into background")) break;
  }
  return absl::FailedPreconditionError(
      absl::StrCat("read the ssh configuration (ssh -G): ", LastLines(err)));
}

}  // namespace dtrain::transport
