// SPDX-License-Identifier: Apache-2.0
#include "common/tls/context.h"

#include <openssl/core_dispatch.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>

#include <future>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/os/private_file.h"
#include "common/tls/openssl.h"
#include "common/tls/reason.h"
#include "common/tls/revocation.h"

namespace dtrain::tls {
namespace {

// Ours and one authority, perhaps with a company's own above it.
constexpr int kChainDepth = 3;
// A peer's certificates come before it has proven anything.
constexpr long kChainBytes = 16 << 10;

// Once, before OpenSSL is used. Its configuration file belongs to the system's OpenSSL, which
// another version than the one linked in need not understand; and the old names of all ciphers,
// which nobody here asks for by name, take a millisecond of each launch.
void PrepareOpenSsl() {
  static const int done =
      OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_ADD_ALL_CIPHERS, nullptr);
  DTRAIN_CHECK(done == 1);
}

// OpenSSL would ask the terminal for the passphrase of an encrypted key.
int NoPassphrase(char*, int, int, void*) { return -1; }

UniqueBio Memory(const std::string& text) {
  return UniqueBio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// All that `Read` finds in the text of a file, at least one. `what`: a word for it.
template <typename Unique, auto Read>
absl::StatusOr<std::vector<Unique>> ReadAll(const std::string& path, const std::string& text,
                                            absl::string_view what) {
  const UniqueBio bio = Memory(text);
  std::vector<Unique> out;
  for (;;) {
    Unique one(Read(bio.get(), nullptr, NoPassphrase, nullptr));
    if (one == nullptr) break;
    out.push_back(std::move(one));
  }
  // The last one fails with "no start line" when nothing follows.
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  const std::string error = LastError();
  if (out.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " holds no ", what, " in PEM"));
  }
  if (!at_end) {
    return absl::InvalidArgumentError(absl::StrCat(path, " holds a broken ", what, ": ", error));
  }
  return out;
}

absl::StatusOr<std::vector<UniqueX509>> ReadCertificates(const std::string& path) {
  absl::StatusOr<std::string> text = os::ReadTrustedFile(path);
  if (!text.ok()) return text.status();
  return ReadAll<UniqueX509, PEM_read_bio_X509>(path, *text, "certificate");
}

// Told which type of key it is OpenSSL need not look at everything that could read one, which takes
// a millisecond of each launch. Null: it is another one, or none.
UniqueKey DecodeKey(const std::string& text, const char* type) {
  EVP_PKEY* key = nullptr;
  const UniqueDecoder decoder(OSSL_DECODER_CTX_new_for_pkey(
      &key, "PEM", nullptr, type, OSSL_KEYMGMT_SELECT_KEYPAIR, nullptr, nullptr));
  if (decoder != nullptr) OSSL_DECODER_from_bio(decoder.get(), Memory(text).get());
  ERR_clear_error();
  return UniqueKey(key);
}

absl::StatusOr<UniqueKey> ReadKey(const std::string& path, const X509* certificate) {
  absl::StatusOr<std::string> text = os::ReadPrivateFile(path);
  if (!text.ok()) return text.status();
  const EVP_PKEY* theirs = X509_get0_pubkey(certificate);
  UniqueKey key;
  if (theirs != nullptr) key = DecodeKey(*text, EVP_PKEY_get0_type_name(theirs));
  if (key == nullptr) {
    key.reset(PEM_read_bio_PrivateKey(Memory(*text).get(), nullptr, NoPassphrase, nullptr));
  }
  OPENSSL_cleanse(text->data(), text->size());
  if (key == nullptr) {
    ERR_clear_error();
    return absl::InvalidArgumentError(
        absl::StrCat(path, " holds no private key in PEM without a passphrase"));
  }
  return key;
}

// One of each authority: there are two while one replaces the other.
absl::StatusOr<std::vector<UniqueCrl>> ReadRevoked(const std::string& path) {
  absl::StatusOr<std::string> text = os::ReadTrustedFile(path, 16 << 20);
  if (!text.ok()) return text.status();
  return ReadAll<UniqueCrl, PEM_read_bio_X509_CRL>(path, *text, "list of revoked certificates");
}

// Of a server: HTTP/2 first, for gRPC. Nothing offered is no protocol.
int ChooseProtocol(SSL*, const unsigned char** out, unsigned char* out_size,
                   const unsigned char* offered, unsigned offered_size, void*) {
  static constexpr unsigned char kOurs[] = "\x02h2\x08http/1.1";
  unsigned char* chosen = nullptr;
  if (SSL_select_next_proto(&chosen, out_size, kOurs, sizeof(kOurs) - 1, offered, offered_size) !=
      OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  }
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

UniqueSslContext MakeNative(Side side) {
  UniqueSslContext native(
      SSL_CTX_new(side == Side::kServer ? TLS_server_method() : TLS_client_method()));
  if (native == nullptr) return nullptr;
  SSL_CTX* ctx = native.get();
  SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
  // Of TLS 1.2 only what is forward secret and authenticated. OpenSSL's for 1.3 are all that.
  SSL_CTX_set_cipher_list(ctx, "ECDHE+AESGCM:ECDHE+CHACHA20");
  SSL_CTX_set_security_level(ctx, 2);
  SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_NO_TICKET);
  // A resumed session would keep a certificate alive that was revoked since.
  SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(ctx, 0);
  SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                            SSL_MODE_RELEASE_BUFFERS | SSL_MODE_NO_AUTO_CHAIN);
  SSL_CTX_set_max_cert_list(ctx, kChainBytes);
  SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_verify_depth(ctx, kChainDepth);
  if (side == Side::kServer) SSL_CTX_set_alpn_select_cb(ctx, ChooseProtocol, nullptr);
  return native;
}

// The peer would find it out too, but only when we need it, and with fewer words.
absl::Status CheckOwn(Side side, X509_STORE* store, const std::vector<UniqueX509>& chain,
                      const Files& files) {
  const UniqueStoreContext check(X509_STORE_CTX_new());
  STACK_OF(X509)* between = sk_X509_new_null();
  for (size_t i = 1; i < chain.size(); ++i) sk_X509_push(between, chain[i].get());
  X509_STORE_CTX_init(check.get(), store, chain[0].get(), between);
  X509_STORE_CTX_set_default(check.get(), side == Side::kServer ? "ssl_server" : "ssl_client");
  const bool good = X509_verify_cert(check.get()) == 1;
  absl::Status status;
  if (!good) {
    status = absl::UnauthenticatedError(absl::StrCat("our certificate ", files.certificate, " ",
                                                     DescribeVerifyFailure(check.get(), "").about,
                                                     " (", files.ca, ")"));
  }
  sk_X509_free(between);
  ERR_clear_error();
  return status;
}

// All but who we are.
absl::StatusOr<UniqueSslContext> MakeTrusting(Side side, const Files& files) {
  ERR_clear_error();
  UniqueSslContext native = MakeNative(side);
  if (native == nullptr) return absl::InternalError(absl::StrCat("no TLS: ", LastError()));
  absl::StatusOr<std::vector<UniqueX509>> authorities = ReadCertificates(files.ca);
  if (!authorities.ok()) return authorities.status();
  X509_STORE* store = SSL_CTX_get_cert_store(native.get());
  for (const UniqueX509& authority : *authorities) X509_STORE_add_cert(store, authority.get());
  if (files.crl.empty()) return native;
  absl::StatusOr<std::vector<UniqueCrl>> revoked = ReadRevoked(files.crl);
  if (!revoked.ok()) return revoked.status();
  for (const UniqueCrl& list : *revoked) X509_STORE_add_crl(store, list.get());
  X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK);
  VerifyListsOnce(store, *std::move(revoked));
  return native;
}

absl::Status AddOwn(SSL_CTX* ctx, const std::vector<UniqueX509>& chain, EVP_PKEY* key,
                    const Files& files) {
  if (SSL_CTX_use_certificate(ctx, chain[0].get()) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(files.certificate, " cannot be used: ", LastError()));
  }
  for (size_t i = 1; i < chain.size(); ++i) SSL_CTX_add1_chain_cert(ctx, chain[i].get());
  if (X509_check_private_key(chain[0].get(), key) != 1 || SSL_CTX_use_PrivateKey(ctx, key) != 1) {
    ERR_clear_error();
    return absl::UnauthenticatedError(absl::StrCat(
        files.key, " is not the key of ", files.certificate, ": put the two that belong together"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Context>> Context::Load(Side side, const Files& files) {
  PrepareOpenSsl();
  // Each half takes OpenSSL some milliseconds, and a launch waits for them. Where no thread is to
  // be had, one after the other.
  std::future<absl::StatusOr<UniqueSslContext>> trusting =
      std::async(std::launch::async | std::launch::deferred, MakeTrusting, side, files);
  ERR_clear_error();
  absl::StatusOr<std::vector<UniqueX509>> chain = ReadCertificates(files.certificate);
  if (!chain.ok()) return chain.status();
  absl::StatusOr<UniqueKey> key = ReadKey(files.key, chain->front().get());
  if (!key.ok()) return key.status();
  absl::StatusOr<UniqueSslContext> native = trusting.get();
  if (!native.ok()) return native.status();
  absl::Status status = AddOwn(native->get(), *chain, key->get(), files);
  if (!status.ok()) return status;
  status = CheckOwn(side, SSL_CTX_get_cert_store(native->get()), *chain, files);
  if (!status.ok()) return status;
  absl::StatusOr<Certificate> own = ReadCertificate(chain->front().get());
  if (!own.ok()) return own.status();
  return std::shared_ptr<const Context>(new Context(side, *std::move(own), native->release()));
}

Context::~Context() { SSL_CTX_free(native_); }

}  // namespace dtrain::tls
