package provision

import (
	"slices"
	"strings"
)

// Proxies are the variables with the proxies of a machine. Programs read them in capitals or
// in small letters.
func Proxies() []string { return []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"} }

// Certificates are the variables with files and folders of the certificates that a machine
// trusts.
func Certificates() []string {
	return []string{"SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"}
}

// IsNetwork reports whether a variable says how programs of this machine reach others: by
// which proxies, and trusting which certificates. Installs and servers get such variables.
func IsNetwork(name string) bool {
	return IsProxy(name) || slices.Contains(Certificates(), name) ||
		name == "NODE_USE_ENV_PROXY" || name == "NODE_USE_SYSTEM_CA" // these make Node use the variables of proxies and certificates
}

// IsProxy reports whether a variable has a proxy.
func IsProxy(name string) bool { return slices.Contains(Proxies(), strings.ToUpper(name)) }

// Network returns the network variables of a machine that a server gets. A variable of the
// server's own env, or one that it unsets, takes the place of the machine's, whatever the
// case of its letters: programs prefer one of the two.
func Network(machine, env map[string]string, unset []string) map[string]string {
	all := map[string]string{}
	for name, value := range machine {
		if IsNetwork(name) {
			all[name] = value
		}
	}
	replaced := slices.Clone(unset)
	for name := range env {
		replaced = append(replaced, name)
	}
	for name := range all {
		if slices.ContainsFunc(replaced, func(own string) bool { return strings.EqualFold(own, name) }) {
			delete(all, name)
		}
	}
	return all
}
