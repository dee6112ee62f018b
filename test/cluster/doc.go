// SPDX-License-Identifier: Apache-2.0

// Package cluster runs a real Kubernetes control plane for tests: etcd and kube-apiserver, on request also
// kube-controller-manager and kube-scheduler, from the one binary that test/controlplane builds. The parts listen on
// loopback only, the certificates are made on the spot, and every process ends with the test that started it, also
// when the test is killed.
//
// Nodes are played by fake kubelets (see Cluster.NewKubelet) under the identity system:node:<name>; the agent under
// test gets what it has in production, a token bound to its Node with the roles and admission policies of
// packaging/kubernetes on it (see Cluster.AgentKubeconfig).
package cluster
