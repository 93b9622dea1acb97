// SPDX-License-Identifier: Apache-2.0
#include "common/tls/session.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/text.h"
#include "common/tls/socket_bio.h"

namespace dtrain::tls {
namespace {

// "[fe80::1%eth0]" as fe80::1: certificates know neither brackets nor zones.
std::string BareName(absl::string_view name) {
  if (absl::ConsumePrefix(&name, "[")) absl::ConsumeSuffix(&name, "]");
  if (absl::StrContains(name, ':')) name = name.substr(0, name.find('%'));
  return std::string(name);
}

bool IsAddress(const std::string& name) {
  in6_addr any;
  return inet_pton(AF_INET, name.c_str(), &any) == 1 ||
         inet_pton(AF_INET6, name.c_str(), &any) == 1;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Session>> Session::Make(const Context& context, int fd,
                                                       absl::string_view server_name,
                                                       absl::string_view alpn) {
  ERR_clear_error();
  UniqueSsl ssl(SSL_new(context.native()));
  UniqueBio bio = MakeSocketBio(fd);
  if (ssl == nullptr || bio == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("no TLS: ", LastError()));
  }
  // One reference serves both ways.
  SSL_set_bio(ssl.get(), bio.get(), bio.get());
  bio.release();
  std::unique_ptr<Session> session(new Session(std::move(ssl), context.side()));
  SSL* native = session->ssl_.get();
  SSL_set_app_data(native, session.get());
  SSL_set_verify(native, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, OnVerify);
  if (context.side() == Side::kServer) {
    SSL_set_accept_state(native);
    return session;
  }
  SSL_set_connect_state(native);
  if (absl::Status ok = session->Expect(server_name, alpn); !ok.ok()) return ok;
  return session;
}

absl::Status Session::Expect(absl::string_view server_name, absl::string_view alpn) {
  server_name_ = BareName(server_name);
  wanted_alpn_ = std::string(alpn);
  SSL* ssl = ssl_.get();
  bool set = !server_name_.empty();
  if (IsAddress(server_name_)) {
    set = set && X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), server_name_.c_str()) == 1;
  } else {
    // The subject is not a name to connect to: only the SAN counts.
    SSL_set_hostflags(ssl,
                      X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
    set = set && SSL_set1_host(ssl, server_name_.c_str()) == 1 &&
          SSL_set_tlsext_host_name(ssl, server_name_.c_str()) == 1;
  }
  if (!set) {
    ERR_clear_error();
    return absl::InvalidArgumentError(
        absl::StrCat("not a server name: \"", Escape(server_name), "\""));
  }
  const std::string offer = absl::StrCat(std::string(1, static_cast<char>(alpn.size())), alpn);
  if (SSL_set_alpn_protos(ssl, reinterpret_cast<const unsigned char*>(offer.data()),
                          static_cast<unsigned>(offer.size())) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("not a protocol: \"", Escape(alpn), "\""));
  }
  return absl::OkStatus();
}

int Session::OnVerify(int good, X509_STORE_CTX* store) {
  const auto* ssl =
      static_cast<SSL*>(X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx()));
  auto* self = static_cast<Session*>(SSL_get_app_data(ssl));
  if (good == 1 && X509_STORE_CTX_get_error_depth(store) == 0) {
    const absl::StatusOr<Certificate> peer =
        ReadCertificate(X509_STORE_CTX_get_current_cert(store));
    if (!peer.ok()) {
      X509_STORE_CTX_set_error(store, X509_V_ERR_APPLICATION_VERIFICATION);
      good = 0;
    } else if (self->side_ == Side::kClient && peer->kind != Kind::kNode) {
      // Whatever else it allows: who serves is a node.
      X509_STORE_CTX_set_error(store, X509_V_ERR_INVALID_PURPOSE);
      good = 0;
    }
  }
  if (good != 1) self->verify_ = DescribeVerifyFailure(store, self->server_name_);
  return good;
}

Session::Outcome Session::Judge(int result, int error_number) {
  const int error = SSL_get_error(ssl_.get(), result);
  switch (error) {
    case SSL_ERROR_WANT_READ:
      return Outcome::kWantRead;
    case SSL_ERROR_WANT_WRITE:
      return Outcome::kWantWrite;
    case SSL_ERROR_ZERO_RETURN:
      return Outcome::kEnded;
    default:
      why_ = WhyItFailed(error, error_number, !shaken_, verify_);
      return Outcome::kFailed;
  }
}

Session::Outcome Session::Handshake() {
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_.get());
  if (result != 1) {
    const Outcome outcome = Judge(result, errno);
    if (outcome != Outcome::kEnded) return outcome;
    why_ = absl::UnavailableError("it ended the connection during the TLS handshake");
    return Outcome::kFailed;
  }
  if (side_ == Side::kClient && alpn() != wanted_alpn_) {
    why_ = absl::UnauthenticatedError(
        absl::StrCat("it speaks TLS, but not ", wanted_alpn_, ": this is not a dtrain agent"));
    return Outcome::kFailed;
  }
  shaken_ = true;
  return Outcome::kDone;
}

bool Session::heard() const { return SSL_get_state(ssl_.get()) != TLS_ST_BEFORE; }

Session::Outcome Session::Read(char* data, size_t size, size_t* done) {
  ERR_clear_error();
  const int result = SSL_read_ex(ssl_.get(), data, size, done);
  return result == 1 ? Outcome::kDone : Judge(result, errno);
}

Session::Outcome Session::Write(const char* data, size_t size, size_t* done) {
  ERR_clear_error();
  const int result = SSL_write_ex(ssl_.get(), data, size, done);
  return result == 1 ? Outcome::kDone : Judge(result, errno);
}

Session::Outcome Session::TellEnd() {
  ERR_clear_error();
  // 0: told, and the peer has not said the same yet, which Read waits for.
  const int result = SSL_shutdown(ssl_.get());
  return result >= 0 ? Outcome::kDone : Judge(result, errno);
}

absl::StatusOr<Certificate> Session::Peer() const {
  const X509* x509 = SSL_get0_peer_certificate(ssl_.get());
  if (x509 == nullptr) return absl::UnauthenticatedError("it presented no certificate");
  return ReadCertificate(x509);
}

absl::Status Session::CheckAgain(const Context& context) const {
  const UniqueStoreContext check(X509_STORE_CTX_new());
  if (check == nullptr || X509_STORE_CTX_init(check.get(), SSL_CTX_get_cert_store(context.native()),
                                              SSL_get0_peer_certificate(ssl_.get()),
                                              SSL_get_peer_cert_chain(ssl_.get())) != 1) {
    return absl::ResourceExhaustedError(absl::StrCat("no TLS: ", LastError()));
  }
  X509_STORE_CTX_set_default(check.get(), side_ == Side::kServer ? "ssl_client" : "ssl_server");
  X509_STORE_CTX_set_flags(check.get(), X509_V_FLAG_NO_CHECK_TIME);
  absl::Status status;
  if (X509_verify_cert(check.get()) != 1) {
    status = absl::UnauthenticatedError(
        absl::StrCat("its certificate ", DescribeVerifyFailure(check.get(), "").about));
  }
  ERR_clear_error();
  return status;
}

std::string Session::alpn() const {
  const unsigned char* chosen = nullptr;
  unsigned size = 0;
  SSL_get0_alpn_selected(ssl_.get(), &chosen, &size);
  return chosen == nullptr ? "" : std::string(reinterpret_cast<const char*>(chosen), size);
}

}  // namespace dtrain::tls
