// Where the patches of a picture are: in the part of the picture that the model sees.

/** Return the rows and columns of patches of a model, and the number of its own tokens before them. */
export function patchGrid({ image, prefixRows }) {
    const { height, width, patchSize } = image;
    return { rows: Math.floor(height / patchSize), columns: Math.floor(width / patchSize), prefix: prefixRows };
}

/** Return the part of a picture, { x, y, width, height } in its pixels, that a model sees after resizing and cropping. */
export function seenPart(picture, { image }) {
    const { preparation, height, width } = image;
    const edge = preparation.resizeShortestEdge;
    const shortest = Math.min(picture.width, picture.height);
    const size = edge
        ? { width: (picture.width * edge) / shortest, height: (picture.height * edge) / shortest }
        : { width: preparation.resizeWidth || picture.width, height: preparation.resizeHeight || picture.height };
    const scale = { x: picture.width / size.width, y: picture.height / size.height };
    // A crop is in the middle; without one, the model sees the whole picture.
    return {
        x: ((size.width - width) / 2) * scale.x,
        y: ((size.height - height) / 2) * scale.y,
        width: width * scale.x,
        height: height * scale.y,
    };
}
