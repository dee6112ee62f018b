// SPDX-License-Identifier: Apache-2.0

//go:build fleet

package slot

const schedules = 1_000_000
