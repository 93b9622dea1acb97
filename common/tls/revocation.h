// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <openssl/x509.h>

#include <vector>

#include "common/tls/openssl.h"

namespace dtrain::tls {

// OpenSSL verifies the signature of a list of revoked certificates again for each certificate that
// it looks up there, an eighth of what a handshake computes. With this the store does it once for
// each of `crls`, which must be in it: lists do not change. Their dates are looked at each time.
// Lists for some certificates only (an issuing distribution point, a delta) are left to OpenSSL.
void VerifyListsOnce(X509_STORE* store, std::vector<UniqueCrl> crls);

}  // namespace dtrain::tls
