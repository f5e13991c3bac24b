package provision

import (
	"slices"
	"strings"
)

// Proxies returns the names of the variables for a machine's proxies.
func Proxies() []string { return []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"} }

// Certificates returns the names of the variables for files and folders with the certificates that
// a machine trusts.
func Certificates() []string {
	return []string{"SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"}
}

// IsNetwork reports whether a variable says through which proxies the programs of this machine
// reach others, or which certificates they trust.
func IsNetwork(name string) bool {
	return IsProxy(name) || slices.Contains(Certificates(), name) ||
		name == "NODE_USE_ENV_PROXY" || name == "NODE_USE_SYSTEM_CA" // these make Node read the variables for proxies and certificates
}

// IsProxy reports whether name is one of [Proxies], in upper or lower case.
func IsProxy(name string) bool { return slices.Contains(Proxies(), strings.ToUpper(name)) }

// Network returns the network variables that a server gets from the machine. Network leaves out the
// names in the arguments env and unset, in upper and lower case: if both were set, a program might
// prefer the machine's.
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
