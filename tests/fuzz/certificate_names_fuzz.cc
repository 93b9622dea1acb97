// SPDX-License-Identifier: Apache-2.0
// Names of a certificate: pieces divided by newlines, each the letter of what it is (C, D, I or U)
// and its bytes.
#include <openssl/x509v3.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "agent/auth/identity.h"
#include "common/tls/certificate.h"
#include "tests/fuzz/expect.h"

namespace {

using dtrain::tls::Certificate;

struct Free {
  void operator()(X509* x509) const { X509_free(x509); }
  void operator()(GENERAL_NAMES* names) const { GENERAL_NAMES_free(names); }
};

void AddName(GENERAL_NAMES* names, int type, absl::string_view bytes) {
  ASN1_STRING* value =
      ASN1_STRING_type_new(type == GEN_IPADD ? V_ASN1_OCTET_STRING : V_ASN1_IA5STRING);
  DTRAIN_CHECK(value != nullptr);
  DTRAIN_CHECK(ASN1_STRING_set(value, bytes.data(), static_cast<int>(bytes.size())) == 1);
  GENERAL_NAME* name = GENERAL_NAME_new();
  GENERAL_NAME_set0_value(name, type, value);
  DTRAIN_CHECK(sk_GENERAL_NAME_push(names, name) > 0);
}

std::unique_ptr<X509, Free> Make(absl::string_view text) {
  std::unique_ptr<X509, Free> x509(X509_new());
  const std::unique_ptr<GENERAL_NAMES, Free> names(GENERAL_NAMES_new());
  DTRAIN_CHECK(x509 != nullptr && names != nullptr);
  for (absl::string_view piece : absl::StrSplit(text, '\n')) {
    if (piece.empty()) continue;
    const absl::string_view bytes = piece.substr(1);
    if (piece[0] == 'C') {
      // Refused by OpenSSL when it is too long.
      X509_NAME_add_entry_by_txt(X509_get_subject_name(x509.get()), "CN", MBSTRING_ASC,
                                 reinterpret_cast<const unsigned char*>(bytes.data()),
                                 static_cast<int>(bytes.size()), -1, 0);
    }
    if (piece[0] == 'D') AddName(names.get(), GEN_DNS, bytes);
    if (piece[0] == 'I') AddName(names.get(), GEN_IPADD, bytes);
    if (piece[0] == 'U') AddName(names.get(), GEN_URI, bytes);
  }
  if (sk_GENERAL_NAME_num(names.get()) > 0) {
    DTRAIN_CHECK(X509_add1_ext_i2d(x509.get(), NID_subject_alt_name, names.get(), 0, 0) == 1);
  }
  return x509;
}

void ExpectPlain(absl::string_view name) {
  DTRAIN_CHECK(!name.empty());
  for (char c : name) DTRAIN_CHECK(c > ' ' && c <= '~');
}

// Letters of all languages may be in a message, but nothing that a terminal obeys.
void ExpectNoControl(absl::string_view message) {
  for (size_t i = 0; i < message.size(); ++i) {
    const auto c = static_cast<unsigned char>(message[i]);
    DTRAIN_CHECK(c >= ' ' && c != 0x7f);
    // U+0080 to U+009F
    DTRAIN_CHECK(c != 0xc2 || static_cast<unsigned char>(message[i + 1]) >= 0xa0);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 4096) return 0;
  const auto x509 = Make(dtrain::fuzz::Text(data, size));
  (void)dtrain::tls::ReadForMessage(x509.get());
  const auto read = dtrain::tls::ReadCertificate(x509.get());
  if (!read.ok()) {
    ExpectNoControl(read.status().message());
    return 0;
  }
  ExpectPlain(read->name);
  for (const auto* list : {&read->dns_names, &read->addresses, &read->uris}) {
    for (const std::string& name : *list) ExpectPlain(name);
  }
  // Nobody becomes root, and nobody an account that was not asked for by the very name.
  dtrain::auth::Policy policy;
  const std::string wanted = read->name;
  const auto identity = dtrain::auth::IdentityOfCertificate(
      {std::string(dtrain::tls::KindName(read->kind)), read->name, read->serial}, "10.0.0.7",
      policy, [&](absl::string_view name) {
        DTRAIN_CHECK(name == wanted);
        return dtrain::auth::Account{std::string(name), 0, 0};
      });
  DTRAIN_CHECK(!identity.ok() || !identity->account.has_value());
  return 0;
}
