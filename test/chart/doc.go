// Package chart tests deploy/helm/warmpath: it renders the chart by Helm's own library
// for a matrix of values, decodes every resource strictly into the types that
// Kubernetes and the operators publish, and asserts what matters of each.
//
// It is a module of its own, so that the gateway's does not depend on Helm.
package chart
