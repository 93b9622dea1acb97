// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <openssl/x509.h>

namespace dtrain::tls {

// OpenSSL verifies the signature of the list of revoked certificates anew for each certificate that
// it looks up there, an eighth of what a handshake computes. With this the store does it once for
// `crl`, which must be in it: the list does not change. Its dates are looked at each time. Lists
// for some certificates only (an issuing distribution point, a delta) are left to OpenSSL.
void VerifyListOnce(X509_STORE* store, X509_CRL* crl);

}  // namespace dtrain::tls
