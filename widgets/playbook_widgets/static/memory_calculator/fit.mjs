// Whether a plan fits, in words, as playbook.hardware.verdict_of has it.

/** `app.bytes` writes sizes; a result has `verdict`, and what is to `spare`, what should be free (`reserve`). */
export function fit(app, { verdict, spare, reserve }) {
  if (verdict === "tight") return `tight, ${app.bytes(spare)} to spare, less than the ${app.bytes(reserve)} kept free`;
  return verdict === "fits" ? `fits, ${app.bytes(spare)} to spare` : `does not fit, by ${app.bytes(-spare)}`;
}
