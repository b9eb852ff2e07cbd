// The conformance package is made for Node.js 22, because of one function, which only a command that is not used here
// calls. With this, `node --import` runs it on 20.
import { register } from "node:module";

const filesystem = "data:text/javascript,export * from 'node:fs'; export const globSync = undefined;";
const hooks = `export const resolve = (name, context, next) =>
  name === "fs" && !context.parentURL?.startsWith("data:")
    ? { url: ${JSON.stringify(filesystem)}, shortCircuit: true }
    : next(name, context);`;
register("data:text/javascript," + encodeURIComponent(hooks));
