/** A part of a traced call, or a traced group commit. What is done for it is noted as further parts of it. */
export interface Trace {
  begin(name: string): TracePart;
}

export interface TracePart extends Trace {
  /** To be called once. */
  end(error?: unknown): void;
}

/** Runs work as a part of a trace. Default: the work is not traced. */
export async function traced<T>(trace: Trace | undefined, name: () => string, work: () => Promise<T>): Promise<T> {
  if (trace === undefined) return work();
  const part = trace.begin(name());
  try {
    const result = await work();
    part.end();
    return result;
  } catch (error) {
    part.end(error);
    throw error;
  }
}
