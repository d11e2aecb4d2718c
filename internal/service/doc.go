// Package service holds what every role's process needs: configuration from file, environment and flags; listeners
// and connections by address; logs; a monitoring endpoint; and a group of parts that start and stop together.
package service
