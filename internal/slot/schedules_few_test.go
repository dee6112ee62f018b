// SPDX-License-Identifier: Apache-2.0

//go:build !fleet

package slot

const schedules = 3000 // a million with the tag fleet
