// SPDX-License-Identifier: Apache-2.0
#include "common/tls/certificate.h"

#include <arpa/inet.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <ctime>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/text.h"
#include "common/tls/openssl.h"

namespace dtrain::tls {
namespace {

constexpr std::pair<Kind, absl::string_view> kKinds[] = {
    {Kind::kNode, "node"},
    {Kind::kUser, "user"},
    {Kind::kAdmin, "admin"},
    {Kind::kObserver, "observer"},
};

struct FreeText {
  void operator()(unsigned char* text) const { OPENSSL_free(text); }
  void operator()(char* text) const { OPENSSL_free(text); }
  void operator()(BIGNUM* number) const { BN_free(number); }
  void operator()(GENERAL_NAMES* names) const { GENERAL_NAMES_free(names); }
};

std::string CommonName(const X509* x509) {
  const X509_NAME* subject = X509_get_subject_name(x509);
  const int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  if (at < 0) return "";
  unsigned char* utf8 = nullptr;
  const int size =
      ASN1_STRING_to_UTF8(&utf8, X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at)));
  if (size < 0) return "";
  const std::unique_ptr<unsigned char, FreeText> owned(utf8);
  return std::string(reinterpret_cast<const char*>(utf8), static_cast<size_t>(size));
}

std::string Serial(const X509* x509) {
  const std::unique_ptr<BIGNUM, FreeText> number(
      ASN1_INTEGER_to_BN(X509_get0_serialNumber(x509), nullptr));
  const std::unique_ptr<char, FreeText> hex(number == nullptr ? nullptr : BN_bn2hex(number.get()));
  return hex == nullptr ? "" : hex.get();
}

absl::Time TimeOf(const ASN1_TIME* time) {
  struct tm parts {};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return absl::InfinitePast();
  return absl::FromTM(parts, absl::UTCTimeZone());
}

// A NUL or a control byte in a name would be read as another name by who takes it for a C string.
bool IsPlain(absl::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

std::string AddressText(absl::string_view bytes) {
  char text[INET6_ADDRSTRLEN] = "";
  if (bytes.size() == 4) inet_ntop(AF_INET, bytes.data(), text, sizeof(text));
  if (bytes.size() == 16) inet_ntop(AF_INET6, bytes.data(), text, sizeof(text));
  return text;
}

absl::Status AddName(const GENERAL_NAME* name, Certificate& out) {
  int type = 0;
  const auto* value = static_cast<const ASN1_STRING*>(GENERAL_NAME_get0_value(name, &type));
  if (type != GEN_DNS && type != GEN_URI && type != GEN_IPADD) return absl::OkStatus();
  const absl::string_view bytes(reinterpret_cast<const char*>(ASN1_STRING_get0_data(value)),
                                static_cast<size_t>(ASN1_STRING_length(value)));
  std::string text = type == GEN_IPADD ? AddressText(bytes) : std::string(bytes);
  if (!IsPlain(text)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the certificate holds an invalid name: \"", Escape(bytes), "\""));
  }
  auto& list = type == GEN_DNS ? out.dns_names : type == GEN_URI ? out.uris : out.addresses;
  list.push_back(std::move(text));
  return absl::OkStatus();
}

absl::Status ReadNames(const X509* x509, Certificate& out) {
  out.common_name = CommonName(x509);
  out.serial = Serial(x509);
  out.not_before = TimeOf(X509_get0_notBefore(x509));
  out.not_after = TimeOf(X509_get0_notAfter(x509));
  const std::unique_ptr<GENERAL_NAMES, FreeText> names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(x509, NID_subject_alt_name, nullptr, nullptr)));
  absl::Status status;
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    status.Update(AddName(sk_GENERAL_NAME_value(names.get(), i), out));
  }
  return status;
}

// From dtrain:KIND:NAME; there must be exactly one.
absl::Status SetKind(Certificate& out) {
  size_t found = 0;
  for (const std::string& uri : out.uris) {
    const std::vector<std::string> parts = absl::StrSplit(uri, absl::MaxSplits(':', 2));
    if (parts[0] != "dtrain" || parts.size() != 3) continue;
    for (const auto& [kind, name] : kKinds) {
      if (parts[1] != name || parts[2].empty()) continue;
      out.kind = kind;
      out.name = parts[2];
      ++found;
    }
  }
  if (found == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the certificate of \"", Escape(out.common_name), "\" has ",
                   found == 0 ? "no name" : "more than one name",
                   " of the form dtrain:node:NAME or dtrain:user:NAME: make it with dtrain-pki"));
}

}  // namespace

absl::string_view KindName(Kind kind) {
  for (const auto& [value, name] : kKinds) {
    if (value == kind) return name;
  }
  return "";
}

Certificate ReadForMessage(const X509* x509) {
  Certificate out;
  (void)ReadNames(x509, out);
  return out;
}

absl::StatusOr<Certificate> ReadCertificate(const X509* x509) {
  Certificate out;
  if (absl::Status names = ReadNames(x509, out); !names.ok()) return names;
  if (absl::Status kind = SetKind(out); !kind.ok()) return kind;
  return out;
}

}  // namespace dtrain::tls
