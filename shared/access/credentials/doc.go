// Package credentials keeps what the users of servers have at third parties. These are API keys,
// tokens of OAuth providers, and tokens that their identity provider gives in exchange. Servers use
// them to act in the name of their users. In the servers file, `${principal:NAME}` in the
// environment of a server stands for what the calling principal has at the third party NAME.
//
// A [Vault] reads these secrets for a call, and renews tokens that end. It keeps nothing between
// calls. If several calls need a new token at once, one asks the third party, and the others wait
// until the token is stored. [Pages] are the pages where users connect a third party. The Lambda
// functions that serve calls do not contain the code of the pages.
//
// What is stored is sealed with AES-GCM for its tenant, principal and provider, so a row
// that is copied to another principal does not open.
package credentials
