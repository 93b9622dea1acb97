// SPDX-License-Identifier: Apache-2.0
// What libssh imports for Kerberos logins, which dtrain never asks for: so libdtrain-ssh.so needs
// none of Kerberos' libraries. Each call would fail with GSS_S_UNAVAILABLE.
#include <stddef.h>

enum { kUnavailable = 16 << 16 };

#define REFUSE(name)   \
  unsigned name(void); \
  unsigned name(void) { return kUnavailable; }
REFUSE(gss_accept_sec_context)
REFUSE(gss_acquire_cred)
REFUSE(gss_add_oid_set_member)
REFUSE(gss_create_empty_oid_set)
REFUSE(gss_display_name)
REFUSE(gss_display_status)
REFUSE(gss_get_mic)
REFUSE(gss_import_name)
REFUSE(gss_indicate_mechs)
REFUSE(gss_init_sec_context)
REFUSE(gss_inquire_cred)
REFUSE(gss_inquire_cred_by_mech)
REFUSE(gss_release_buffer)
REFUSE(gss_release_cred)
REFUSE(gss_release_name)
REFUSE(gss_release_oid_set)
REFUSE(gss_test_oid_set_member)
REFUSE(gss_verify_mic)

extern const void* const GSS_C_NT_HOSTBASED_SERVICE;
extern const void* const GSS_C_NT_USER_NAME;
const void* const GSS_C_NT_HOSTBASED_SERVICE = NULL;
const void* const GSS_C_NT_USER_NAME = NULL;
