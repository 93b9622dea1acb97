// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <openssl/bio.h>
#include <openssl/decoder.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <memory>

// OpenSSL's objects with owners. Only for the sources of this folder.
namespace dtrain::tls {

template <auto Free>
struct Freer {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};

using UniqueBio = std::unique_ptr<BIO, Freer<BIO_free_all>>;
using UniqueX509 = std::unique_ptr<X509, Freer<X509_free>>;
using UniqueCrl = std::unique_ptr<X509_CRL, Freer<X509_CRL_free>>;
using UniqueKey = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>>;
using UniqueDecoder = std::unique_ptr<OSSL_DECODER_CTX, Freer<OSSL_DECODER_CTX_free>>;
using UniqueStoreContext = std::unique_ptr<X509_STORE_CTX, Freer<X509_STORE_CTX_free>>;
using UniqueSslContext = std::unique_ptr<SSL_CTX, Freer<SSL_CTX_free>>;
using UniqueSsl = std::unique_ptr<SSL, Freer<SSL_free>>;

}  // namespace dtrain::tls
