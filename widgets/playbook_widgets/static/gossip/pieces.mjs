// What several parts of the widget write and draw alike.

import { rounded } from "../shared/numbers.mjs";

export const number = (value) => rounded(Math.abs(value) < 5e-5 ? 0 : value);
export const px = (value) => value.toFixed(1);
