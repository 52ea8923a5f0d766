# The four commands in an image with nothing else: static binaries, the system's
# authorities, a user that is not root. `make image` builds it for this machine,
# `docker buildx build --platform linux/amd64,linux/arm64 .` for both: the compiler runs
# on the builder's own architecture in either case.
ARG GO=1.26
FROM --platform=$BUILDPLATFORM golang:${GO}-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG TARGETOS TARGETARCH VERSION=unknown
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$VERSION" -o /out/ ./cmd/...

FROM scratch
ARG VERSION=unknown
LABEL org.opencontainers.image.title=warmpath \
      org.opencontainers.image.source=https://github.com/warmpath/warmpath \
      org.opencontainers.image.licenses=Apache-2.0 \
      org.opencontainers.image.version=$VERSION
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /out/ /
USER 65532:65532
EXPOSE 8080 9090
ENTRYPOINT ["/gateway"]
