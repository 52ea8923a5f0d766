//go:build race

package gateway_test

func init() { raceEnabled = true }
