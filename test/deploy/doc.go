// Package deploy tests what deploy/ has for users. It renders the Helm chart by Helm's
// own library for a matrix of values, decodes every resource strictly into the types
// that Kubernetes and the operators publish, and asserts what matters of each; it loads
// the compose file by Compose's own library.
//
// It is a module of its own, so that the gateway's does not depend on either.
package deploy
