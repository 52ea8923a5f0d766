#!/usr/bin/env bash
# Builds the API server of Kubernetes that go.mod names into KUBE_HOME (default
# ~/.cache/warmpath-kube) and prints where it is. Does nothing if it is there already.
# `go install` refuses it for the replace directives of its go.mod, so this module
# repeats them with the versions that are published. Takes Go, 4 GB of disk, and five
# minutes on two cores of which nobody else wants anything. BUILDFLAGS=-p=1 takes one.
set -euo pipefail
cd "$(dirname "$0")"
KUBE_HOME=${KUBE_HOME:-$HOME/.cache/warmpath-kube}
version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
binary=$KUBE_HOME/kube-apiserver-${version#v}
if [ ! -x "$binary" ]; then
  mkdir -p "$KUBE_HOME"
  nice -n 19 go build ${BUILDFLAGS:-} -o "$binary.new" k8s.io/kubernetes/cmd/kube-apiserver
  mv "$binary.new" "$binary"
fi
echo "$binary"
