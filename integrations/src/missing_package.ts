/**
 * Handles a failed import of a module that needs the package of a framework. If the package is missing, throws an error
 * that names it and the command that installs it; otherwise throws the error as it is.
 */
export function namingMissing(entry: string, name: string): (error: unknown) => never {
  return (error) => {
    const { code, message } = error as NodeJS.ErrnoException;
    if (code !== 'ERR_MODULE_NOT_FOUND' || !message.includes(`'${name}'`)) throw error;
    throw new Error(`${entry} needs the package ${name}, which is not installed: npm install ${name}`, {
      cause: error,
    });
  };
}
