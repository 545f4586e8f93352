/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Which libfabric provider, on which interface. What we ask of one: a reliable endpoint without connections, remote
 * writes with 4 bytes of immediate, any way of registering memory. */
#include "mk/err.h"
#include "mk/log.h"
#include "mk/param.h"
#include "net/ifname.h"
#include "ofi.h"
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

/* Providers that reach their peers by an IP address, so that MK_IFNAME applies. */
static bool by_address(const char *provider)
{
    return !strcmp(provider, "net") || !strncmp(provider, "tcp", 3) || !strncmp(provider, "verbs", 5) ||
           !strncmp(provider, "udp", 3) || !strncmp(provider, "sockets", 7);
}

static struct fi_info *make_hints(const struct mk_ofi_lib *lib, const char *provider)
{
    struct fi_info *h = lib->dupinfo(NULL);
    if (!h)
        return NULL;
    h->caps = FI_RMA | FI_WRITE | FI_REMOTE_WRITE;
    h->mode = FI_CONTEXT | FI_CONTEXT2;
    h->ep_attr->type = FI_EP_RDM;
    h->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    h->domain_attr->threading = FI_THREAD_DOMAIN;
    h->domain_attr->resource_mgmt = FI_RM_ENABLED;
    h->domain_attr->av_type = FI_AV_UNSPEC;
    h->fabric_attr->prov_name = strdup(provider);
    if (!h->fabric_attr->prov_name) {
        lib->freeinfo(h);
        return NULL;
    }
    return h;
}

/* The address of the interface to use as text, so that the provider does not take the first that it finds. */
static int source_of(const struct mk_settings *s, const char *provider, char text[INET6_ADDRSTRLEN])
{
    struct mk_ifaddr ifa;
    text[0] = 0;
    if (!by_address(provider))
        return 0;
    const int ret = mk_ifname_choose(s, &ifa);
    if (ret)
        return ret;
    const void *a = ifa.addr.ss_family == AF_INET6
                        ? (const void *)&((const struct sockaddr_in6 *)&ifa.addr)->sin6_addr
                        : (const void *)&((const struct sockaddr_in *)&ifa.addr)->sin_addr;
    if (!inet_ntop(ifa.addr.ss_family, a, text, INET6_ADDRSTRLEN))
        return mk_fail(MK_ERR_SYSTEM, "NET", "ofi: the address of interface %s has no text form", ifa.name);
    return 0;
}

/* The first endpoint whose provider is exactly that. UNSUPPORTED, with the reason: none. */
static int ask(const struct mk_ofi_lib *lib, const struct fi_info *hints, const char *source,
               struct fi_info **out)
{
    const char *provider = hints->fabric_attr->prov_name;
    struct fi_info *list = NULL;
    const int err =
        lib->getinfo(MK_OFI_API, source[0] ? source : NULL, NULL, source[0] ? FI_SOURCE : 0, hints, &list);
    if (err)
        return mk_fail_quiet(MK_ERR_UNSUPPORTED, "ofi: provider %s: %s", provider,
                             err == -FI_ENODATA ? "not on this machine, or not able to do what is needed"
                                                : lib->strerror(-err));
    const struct fi_info *i = list;
    while (i && strcmp(i->fabric_attr->prov_name, provider))
        i = i->next;
    int ret = 0;
    if (!i)
        ret = mk_fail_quiet(MK_ERR_UNSUPPORTED, "ofi: provider %s: libfabric offers only %s under that name",
                            provider, list->fabric_attr->prov_name);
    else if (i->domain_attr->cq_data_size < 4)
        ret = mk_fail_quiet(MK_ERR_UNSUPPORTED,
                            "ofi: provider %s carries %zu bytes of immediate data, 4 are needed", provider,
                            i->domain_attr->cq_data_size);
    else if (!(*out = lib->dupinfo(i)))
        ret = mk_fail(MK_ERR_NOMEM, "NET", "ofi: no memory for provider %s", provider);
    lib->freeinfo(list);
    return ret;
}

/* Asks for order between writes too: some providers promise it only then. Without, if that cannot be had. */
static int ask_ordered(const struct mk_ofi_lib *lib, struct fi_info *hints, const char *source,
                       struct fi_info **out)
{
    hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_WAW;
    if (!ask(lib, hints, source, out))
        return 0;
    hints->tx_attr->msg_order = hints->rx_attr->msg_order = 0;
    return ask(lib, hints, source, out);
}

static int try_provider(const struct mk_ofi_lib *lib, const struct mk_settings *s, const char *provider,
                        struct fi_info **out, bool *delivery)
{
    char source[INET6_ADDRSTRLEN];
    struct fi_info *hints, *with;
    int ret = source_of(s, provider, source);
    if (ret)
        return ret;
    hints = make_hints(lib, provider);
    if (!hints)
        return mk_fail(MK_ERR_NOMEM, "NET", "ofi: no memory for provider %s", provider);
    ret = ask_ordered(lib, hints, source, out);
    if (!ret) {
        /* can local completion mean: visible at the peer? */
        hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
        *delivery = !ask(lib, hints, source, &with);
        if (*delivery)
            lib->freeinfo(with);
    }
    lib->freeinfo(hints);
    return ret;
}

/* A device an interface; of the others one. */
int mk_ofi_nth(const struct mk_settings *s, int nth, struct mk_settings *out)
{
    char name[IF_NAMESIZE];
    *out = *s;
    if (!by_address(s->ofi_provider))
        return nth ? mk_fail_quiet(MK_ERR_UNSUPPORTED, "ofi: one device of provider %s is used",
                                   s->ofi_provider)
                   : 0;
    const int ret = mk_ifname_nth(s, nth, name);
    if (!ret)
        snprintf(out->ifname, sizeof(out->ifname), "=%s", name);
    return ret;
}

int mk_ofi_choose(const struct mk_ofi_lib *lib, const struct mk_settings *s, struct fi_info **out,
                  bool *delivery)
{
    static const char *const automatic[] = {"efa", "net", "tcp", "tcp;ofi_rxm"};
    const size_t n = sizeof(automatic) / sizeof(automatic[0]);
    if (strcmp(s->ofi_provider, "auto"))
        return try_provider(lib, s, s->ofi_provider, out, delivery);
    for (size_t i = 0; i < n; i++) {
        const int ret = try_provider(lib, s, automatic[i], out, delivery);
        if (ret != MK_ERR_UNSUPPORTED)
            return ret;
    }
    return mk_fail_quiet(MK_ERR_UNSUPPORTED, "ofi: libfabric %u.%u offers none of efa, net, tcp, tcp;ofi_rxm",
                         FI_MAJOR(lib->version), FI_MINOR(lib->version));
}
