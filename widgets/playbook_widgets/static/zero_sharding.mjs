export default { render({ model, el }) {} };
