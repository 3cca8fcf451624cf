import type { DescMethod } from '@bufbuild/protobuf';

/** Returns the name of a method in metrics, traces and the log: `TrajectoryService/AppendStep`. */
export function nameOf({ parent, name }: DescMethod): string {
  return `${parent.name}/${name}`;
}
