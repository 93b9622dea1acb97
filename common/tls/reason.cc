// SPDX-License-Identifier: Apache-2.0
#include "common/tls/reason.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"
#include "common/tls/certificate.h"

namespace dtrain::tls {
namespace {

std::string Day(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", time, absl::UTCTimeZone());
}

std::string NameText(const X509_NAME* name) {
  const UniqueBio out(BIO_new(BIO_s_mem()));
  if (out == nullptr) return "";
  X509_NAME_print_ex(out.get(), name, 0, XN_FLAG_RFC2253);
  const char* data = nullptr;
  const long size = BIO_get_mem_data(out.get(), &data);
  return size <= 0 ? "" : Escape(absl::string_view(data, static_cast<size_t>(size)));
}

std::string NamesOf(const Certificate& certificate) {
  std::vector<std::string> names = certificate.dns_names;
  names.insert(names.end(), certificate.addresses.begin(), certificate.addresses.end());
  return names.empty() ? "no host" : Escape(absl::StrJoin(names, ", "));
}

std::string Describe(int error, const X509* x509, const Certificate& certificate,
                     absl::string_view expected) {
  switch (error) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return absl::StrCat("expired on ", Day(certificate.not_after),
                          ": renew it (dtrain-pki renew)");
    case X509_V_ERR_CERT_NOT_YET_VALID: {
      const absl::Time now = absl::Now();
      return absl::StrCat(
          "is valid only from ", Day(certificate.not_before), " on, and it is ", Day(now),
          " here, a clock skew of at least ",
          absl::ToInt64Seconds(absl::Ceil(certificate.not_before - now, absl::Seconds(1))),
          " s: set the clocks");
    }
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
      return absl::StrCat("was issued by another authority (", NameText(X509_get_issuer_name(x509)),
                          ") than the one in ca.crt here");
    case X509_V_ERR_CERT_REVOKED:
      return absl::StrCat("was revoked (serial number ", certificate.serial, ")");
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      return absl::StrCat("is for ", NamesOf(certificate), ", not for \"", Escape(expected),
                          "\": give it that name too (dtrain-pki node --dns or --ip)");
    case X509_V_ERR_INVALID_PURPOSE:
      return "has the wrong role: agents need a node certificate, launchers a user certificate";
    case X509_V_ERR_CRL_HAS_EXPIRED:
      return "cannot be checked: crl.pem here has expired, get the current one";
    case X509_V_ERR_CRL_NOT_YET_VALID:
      return "cannot be checked, as crl.pem here is not valid yet: set the clocks";
    case X509_V_ERR_CRL_SIGNATURE_FAILURE:
      return "cannot be checked: crl.pem here is damaged, get another copy";
    case X509_V_ERR_UNABLE_TO_GET_CRL:
      return "cannot be checked: crl.pem here has no list from its authority";
    case X509_V_ERR_APPLICATION_VERIFICATION:
      return "does not state a role: make it with dtrain-pki";
    default:
      return absl::StrCat("was refused: ", X509_verify_cert_error_string(error));
  }
}

// RFC 8446, 6: what a peer says when it refuses us.
std::string AlertText(int alert) {
  switch (alert) {
    case SSL_AD_BAD_CERTIFICATE:
    case SSL_AD_UNSUPPORTED_CERTIFICATE:
    case SSL_AD_CERTIFICATE_UNKNOWN:
      return "it rejected our certificate";
    case SSL_AD_CERTIFICATE_REVOKED:
      return "it rejected our certificate: it has been revoked";
    case SSL_AD_CERTIFICATE_EXPIRED:
      return "it rejected our certificate: it has expired, or is not yet valid by the clock there";
    case SSL_AD_UNKNOWN_CA:
      return "it rejected our certificate: it trusts another authority";
    case SSL_AD_ACCESS_DENIED:
      return "it rejected our certificate: access denied";
    case SSL_AD_HANDSHAKE_FAILURE:
      return "it refused the handshake: no common cipher, or no certificate presented";
    case TLS13_AD_CERTIFICATE_REQUIRED:
      return "it asks for a certificate";
    case SSL_AD_PROTOCOL_VERSION:
      return "it refused our version of TLS";
    case SSL_AD_NO_APPLICATION_PROTOCOL:
      return "it speaks TLS, but not the protocol that we want (ALPN)";
    default:
      return absl::StrCat("it ended TLS with alert ", alert, " (",
                          SSL_alert_desc_string_long(alert), ")");
  }
}

// A reason of OpenSSL's queue that comes from the peer; empty when it is none we know.
std::string ReasonText(int reason) {
  if (reason > SSL_AD_REASON_OFFSET && reason < SSL_AD_REASON_OFFSET + 256) {
    return AlertText(reason - SSL_AD_REASON_OFFSET);
  }
  switch (reason) {
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
      return "it presented no certificate";
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_HTTP_REQUEST:
    case SSL_R_HTTPS_PROXY_REQUEST:
    case SSL_R_UNKNOWN_PROTOCOL:
    case SSL_R_PACKET_LENGTH_TOO_LONG:
    case SSL_R_RECORD_TOO_SMALL:
    case SSL_R_BAD_RECORD_TYPE:
      return "it does not speak TLS";
    case SSL_R_UNSUPPORTED_PROTOCOL:
    case SSL_R_VERSION_TOO_LOW:
    case SSL_R_UNSUPPORTED_SSL_VERSION:
      return "it speaks only versions of TLS before 1.2";
    case SSL_R_NO_SHARED_CIPHER:
    case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM:
    case SSL_R_NO_SUITABLE_KEY_SHARE:
      return "it speaks TLS with outdated methods only";
    case SSL_R_NO_APPLICATION_PROTOCOL:
      return "it speaks neither HTTP/2 nor HTTP/1.1 over TLS (ALPN)";
    default:
      return "";
  }
}

absl::Status Broken(int error_number, bool in_handshake) {
  const absl::string_view when = in_handshake ? " during the TLS handshake" : "";
  if (error_number == 0) {
    return absl::UnavailableError(
        absl::StrCat("it ended the connection", when, in_handshake ? "" : " without saying so"));
  }
  return absl::UnavailableError(
      absl::StrCat("the connection broke", when, ": ", PosixErrorText(error_number)));
}

}  // namespace

VerifyFailure DescribeVerifyFailure(X509_STORE_CTX* store, absl::string_view expected) {
  VerifyFailure out;
  out.error = X509_STORE_CTX_get_error(store);
  const X509* x509 = X509_STORE_CTX_get_current_cert(store);
  if (x509 == nullptr) {
    out.about = X509_verify_cert_error_string(out.error);
    return out;
  }
  const Certificate certificate = ReadForMessage(x509);
  const bool authority = X509_STORE_CTX_get_error_depth(store) > 0;
  out.about =
      absl::StrCat(authority ? "authority (" : "(",
                   Escape(certificate.common_name.empty() ? "no name" : certificate.common_name),
                   ") ", Describe(out.error, x509, certificate, expected));
  return out;
}

absl::Status WhyItFailed(int ssl_error, int error_number, bool in_handshake,
                         const VerifyFailure& verify) {
  const unsigned long first = ERR_peek_error();
  const int reason = ERR_GET_LIB(first) == ERR_LIB_SSL ? ERR_GET_REASON(first) : 0;
  const std::string text = LastError();
  if (verify.error != X509_V_OK) {
    return absl::UnauthenticatedError(absl::StrCat("its certificate ", verify.about));
  }
  if (reason == SSL_R_UNEXPECTED_EOF_WHILE_READING) return Broken(0, in_handshake);
  if (ssl_error == SSL_ERROR_SYSCALL && first == 0) return Broken(error_number, in_handshake);
  const std::string words = ReasonText(reason);
  if (!words.empty()) return absl::UnauthenticatedError(words);
  return absl::UnauthenticatedError(absl::StrCat("TLS failed: ", text));
}

std::string LastError() {
  const unsigned long error = ERR_peek_last_error();
  ERR_clear_error();
  const char* reason = error == 0 ? nullptr : ERR_reason_error_string(error);
  return reason == nullptr ? "unknown error" : reason;
}

}  // namespace dtrain::tls
